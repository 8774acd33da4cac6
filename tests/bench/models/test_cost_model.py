"""The comparison of cost models: its figures by hand, and one small run of every contender."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from bench.datasets import DATA, dataset_path, first, other_tasks_path, read
from bench.models.contenders import TaskFeatures
from bench.models.cost_model import BENCHMARK, _figures, run
from bench.models.ranking import Ranked, correlation, parts
from bench.result import BenchError
from fleet_tune.base.records.datasets.dataset import save
from policies.features.views import describe


def test_what_a_ranking_found() -> None:
    costs = np.array([4.0, 1.0, math.inf, 2.0, 3.0, 8.0, 7.0])
    ranked = Ranked.of(np.array([0.0, 9.0, 8.0, 1.0, 2.0, 3.0, 4.0]), costs)
    # The first is row 0; among the first five are rows 0, 3, 4, 5, 6, the best of them row 3.
    assert ranked.listed()[:3] == pytest.approx([1.0, 4.0, 2.0])
    # A failure counts as twice the slowest success.
    assert Ranked.of(np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]), costs).first_secs == pytest.approx(16.0)
    assert Ranked.of(costs, costs).listed() == pytest.approx([1.0, 1.0, 1.0, 1.0])
    assert Ranked.of(-costs, costs).correlation == pytest.approx(-1.0)


def test_rank_correlation() -> None:
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 1.125, variances 1.125 and 1.25.
    assert correlation(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(
        1.125 / math.sqrt(1.125 * 1.25)
    )
    assert correlation(np.ones(4), np.arange(4.0)) == 0.0


def test_figures_of_seeds_and_tasks() -> None:
    figures = _figures([[[1.0, 2.0, 1.0, 0.5], [1.0, 1.0, 1.0, 0.7]], [[1.0, 1.0, 1.0, 0.9]] * 2], [1, 1], [3.0, 5.0])
    assert figures["top_1"] == pytest.approx((2 / 3 + 1) / 2)
    assert figures["top_1_worst"] == pytest.approx(2 / 3)
    assert figures["top_5"] == 1.0
    assert figures["top_1_by_task"] == pytest.approx([0.75, 1.0])
    assert figures["correlation"] == pytest.approx(0.75)
    assert figures["train_secs"] == 4.0


def test_parts_are_disjoint_and_complete() -> None:
    data = first(read(dataset_path(None))[0], 100)
    learn, test = parts(data, 3)
    assert len(test) == 20
    assert sorted([*learn.tolist(), *test.tolist()]) == list(range(100))
    assert not np.array_equal(parts(data, 4)[1], test)
    with pytest.raises(BenchError, match="too few"):
        parts(first(data, 5), 0)


def test_rows_of_a_task_keep_the_datasets_order() -> None:
    data = first(read(dataset_path(None))[0], 80)
    assert len(data) == 80
    task = TaskFeatures(data)
    assert len(task.features) == len(data)
    at = int(data.rows(1)[3])
    alone = describe(data.sketches[1], data.decisions[1][3:4], data.abstraction, ["dataflow"])
    assert task.features.view("dataflow")[at] == pytest.approx(alone["dataflow"][0], abs=1e-5)


def test_other_tasks_are_others() -> None:
    path = other_tasks_path(None)
    assert path.parent == DATA / "other-tasks"
    ours, others = read(dataset_path(None)), read(path)
    assert not {data.task.id for data in ours} & {data.task.id for data in others}


def test_a_small_run_of_light_models(tmp_path: Path) -> None:
    ours, others = (tmp_path / name for name in ("ours.ftd", "others.ftd"))
    for path, whole in ((ours, read(dataset_path(None))), (others, read(other_tasks_path(None)))):
        save(dataclasses.replace(whole, tasks=tuple(first(data, 60) for data in whole.tasks[:2])), path)
    models = ("default", "analyzer", "boosted-invariant", "mlp")
    result = run(ours, others, models, 1, 60, 1, peer=False)
    inside, across = result.details["in_domain"], result.details["across"]
    assert set(inside) == set(models)
    assert set(across) == {"analyzer", "boosted-invariant", "mlp"}
    for each in (inside, across):
        for by_count in each.values():
            assert set(by_count) == {"16", "0"}  # no more than half of the limit, and all of them
            for figures in by_count.values():
                assert 0 < figures["top_1"] <= figures["top_5"] <= 1
                assert -1 <= figures["correlation"] <= 1
    assert "| `boosted-invariant` |" in BENCHMARK.table({"details": result.details})
    with pytest.raises(BenchError, match="no model of the comparison"):
        run(ours, others, ("oracle",), 1, None, 1, peer=False)
    alone = run(ours, others, ("boosted-invariant",), 1, None, 1, peer=False, within=False)
    assert alone.details["in_domain"] == {}
    by_count = alone.details["across"]["boosted-invariant"]
    assert set(by_count) == {"16", "64", "256", "0"}
    assert alone.ours == by_count["64"]["top_1"]
    assert by_count["16"]["top_1"] == across["boosted-invariant"]["16"]["top_1"]
    assert BENCHMARK.table({"details": alone.details}).startswith("| across tasks: ")
    with pytest.raises(BenchError, match="none of these ranks tasks that it has no record of: default"):
        run(ours, others, ("default",), 1, None, 1, peer=False, within=False)
