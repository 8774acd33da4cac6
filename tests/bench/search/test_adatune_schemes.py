"""AdaTune's figures 10 and 11: the schemes, measurements on a recorded clock by hand, and runs on a made-up dataset."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.replay.replay_runs import TOLERANCE, RecordedTask
from bench.replay.run_cache import RunCache
from bench.search.adatune_schemes import BASELINE, BENCHMARK, TIMED, Timed, figures, measured, run_scheme, schemes
from fleet_tune.base.task_data import TaskData
from policies.measuring.stop_rules import ADAPTIVE, DETERMINISTIC, RACED
from policies.search.methods import method_named


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_each_scheme_puts_one_part_in() -> None:
    base, forest, contextual, adaptive, ours = schemes().values()
    assert adaptive == method_named("adatune")
    assert replace(base, batch=64) == method_named("autotvm")
    assert (base.stop_rule, forest.stop_rule, contextual.stop_rule) == (DETERMINISTIC,) * 3
    assert (forest.exploration, forest.batch) == (base.exploration, base.batch)
    assert replace(forest, exploration=adaptive.exploration) == contextual
    assert replace(contextual, stop_rule=ADAPTIVE) == adaptive == replace(ours, stop_rule=ADAPTIVE)


def test_seconds_of_a_measurement_by_hand() -> None:
    steady = [0.001, 0.001]
    assert measured(steady, DETERMINISTIC, math.inf, rng()) == pytest.approx((0.001, 0.501))
    assert measured(steady, ADAPTIVE, 0.0001, rng()) == pytest.approx((0.001, 0.101))  # two micro-batches, no racing
    # 500 runs of 0.1 s do not fit into the 10 s: the first run and two micro-batches of 50.
    assert measured([0.1], DETERMINISTIC, math.inf, rng()) == pytest.approx((0.1, 10.1))
    # Ours: one run, and four of 1 ms in a micro-batch; the incumbent is twice as fast.
    assert measured(steady, RACED, 0.0005, rng()) == pytest.approx((0.001, 0.005))
    # What would be the new incumbent is measured again: 3 micro-batches of 4 runs, then 5 of 10.
    assert measured(steady, RACED, 0.002, rng()) == pytest.approx((0.001, 0.013 + 0.051))


def test_a_noisy_candidate_is_measured_for_longer() -> None:
    steady, noisy = [0.001] * 5, [0.0005, 0.0015]
    assert measured(noisy, ADAPTIVE, math.inf, rng())[1] > measured(steady, ADAPTIVE, math.inf, rng())[1]
    cost, _ = measured(noisy, DETERMINISTIC, math.inf, rng())
    assert 0.0005 <= cost <= 0.0015


@pytest.mark.parametrize("name", list(schemes()))
def test_every_scheme_arrives(name: str, data: TaskData) -> None:
    task, method = RecordedTask(data), schemes()[name]
    run = run_scheme(task, method, 1)
    good = int((data.cost_secs <= data.best_secs * (1 + TOLERANCE)).sum())
    assert 1 <= run.trials <= len(data) - good + 1
    assert run.building == pytest.approx(0.25 * run.trials)
    again = run_scheme(task, method, 1)
    assert replace(again, searching=0.0) == replace(run, searching=0.0)
    assert run.secs == pytest.approx(run.measuring + run.building + run.searching)


def test_figures_are_sums_over_the_tasks() -> None:
    one, other = Timed(10, 1.0, 2.0, 3.0), Timed(30, 4.0, 5.0, 6.0)
    found = figures({BASELINE: [[one, other], [one, one], [other, other]]})[BASELINE]
    assert found["trials"] == {"q1": 30.0, "median": 40.0, "q3": 50.0}  # 40, 20 and 60
    assert found["secs"]["median"] == 21.0  # 21, 12 and 30
    assert (found["measuring"]["median"], found["searching"]["median"]) == (5.0, 9.0)


def test_runs_are_kept(tmp_path: Path) -> None:
    dataset, path, run = tmp_path / "set.ftd", tmp_path / "runs.jsonl", Timed(10, 1.5, 2.0, 3.0)
    dataset.write_bytes(b"a dataset")
    RunCache(path, dataset, TIMED).add(schemes()[BASELINE], "conv", 2, run)
    assert RunCache(path, dataset, TIMED).find(schemes()[BASELINE], "conv", 2) == run
    assert RunCache(path, dataset, TIMED).find(schemes()["RFEI + SA + DE"], "conv", 2) is None


def test_its_table() -> None:
    result = json.loads((Path(__file__).parents[1] / "samples" / "adatune-schemes.json").read_text())
    head, _, *rows = BENCHMARK.table(result).splitlines()
    assert "| trials (figure 10) | s of measuring | s of building | s of searching | s in all (figure 11) |" in head
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in schemes()]
