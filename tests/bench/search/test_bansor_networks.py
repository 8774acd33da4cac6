"""Bansor's tables III and IV: the variants, their figures by hand, and runs on a small made-up dataset."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.replay.replay_runs import TOLERANCE, Course, RecordedTask, run_course, run_network
from bench.replay.run_cache import COURSES, REPLAYED, RunCache
from bench.search.bansor_networks import BENCHMARK, BOTH, PEER, lines, variants
from fleet_tune.base.task_data import TaskData
from policies.search.bandits import UcbTasks
from policies.search.methods import method_named
from tests.bench.made_up import made_up

FAST = Course(100, ((10, 2.0), (20, 1.2), (40, 1.04)))
SLOW = Course(100, ((30, 3.0), (90, 1.2)))


def test_the_variants_differ_by_the_bandits_alone() -> None:
    ansor, sketches, both = variants(64).values()
    assert (ansor, both) == (method_named("ansor"), method_named("bansor"))
    assert (sketches.tasks, sketches.sketches) == (ansor.tasks, both.sketches)
    assert {each.batch for each in variants(16).values()} == {16}
    *_, low, high = variants(64, (0.1, 1.0)).values()
    assert isinstance(low.tasks, UcbTasks)
    assert isinstance(high.tasks, UcbTasks)
    assert (low.tasks.exploration_constant, high.tasks.exploration_constant) == (0.1, 1.0)
    assert replace(low, tasks=both.tasks) == replace(high, tasks=both.tasks) == both


def test_lines_by_hand() -> None:
    found = lines({PEER: [SLOW, FAST], "other": [FAST, SLOW]})
    assert found[PEER]["latency"]["median"] == pytest.approx(1.12)
    assert found[PEER]["near"] == {"q1": 55.0, "median": 70.0, "q3": 85.0}  # 100, for it never is, and 40
    assert found[PEER]["matched"] == {"q1": 52.5, "median": 65.0, "q3": 77.5}  # its own best: 90 and 40
    assert found["other"]["matched"] == {"q1": 40.0, "median": 60.0, "q3": 80.0}  # 20 and never: 100
    assert Course(5, ()).trials_to(2.0) == 5


def test_a_course_is_a_run_of_the_network(data: TaskData) -> None:
    tasks = [RecordedTask(data), RecordedTask(made_up("other", seed=5))]
    for method in variants(8).values():
        arrived = run_network(tasks, method, 3)
        course = run_course(tasks, method, 3, arrived)
        assert course.trials == arrived == course.trials_to(1 + TOLERANCE)
        assert course.steps[-1] == (arrived, course.best)
        values = [value for _, value in course.steps]
        assert 1.0 <= values[-1] <= 1 + TOLERANCE < min(values[:-1], default=2.0)
        assert values == sorted(values, reverse=True)
    everything = run_course(tasks, method_named("random"), 3, 10_000)
    assert (everything.trials, everything.best) == (sum(len(task.data) for task in tasks), 1.0)


def test_courses_are_kept(tmp_path: Path) -> None:
    dataset, path = tmp_path / "set.ftd", tmp_path / "runs.jsonl"
    dataset.write_bytes(b"a dataset")
    method = method_named("bansor")
    RunCache(path, dataset, COURSES).add(method, "100 trials of a, b", 1, FAST)
    kept = RunCache(path, dataset, COURSES)
    assert kept.find(method, "100 trials of a, b", 1) == FAST
    assert kept.find(variants(16)[PEER], "100 trials of a, b", 1) is None
    assert RunCache(path, dataset, REPLAYED).find(method, "100 trials of a, b", 1) is None


def test_its_table() -> None:
    result = json.loads((Path(__file__).parents[1] / "samples" / "bansor-networks.json").read_text())
    text = BENCHMARK.table(result)
    assert "| rounds of 16: Ansor | " in text
    head, _, *rows = text.splitlines()
    assert "trials to Ansor's latency" in head
    assert rows[0].endswith("|  |")
    goal, need = (result["details"]["rounds"]["16"][name]["matched"]["median"] for name in (PEER, BOTH))
    assert rows[2].endswith(f"| {goal / need:.2f} |")
