"""Pruner's equation 3 for every k: by hand, and on recorded candidates."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from bench.datasets import DATA
from bench.drafts import draft_best_k as subject
from bench.drafts import draft_penalties
from bench.drafts.draft_best_k import BENCHMARK, KEPT, PLACES, best_k, run
from bench.drafts.draft_penalties import expected_kth, found_secs
from bench.result import BenchError
from fleet_tune.base.sketch import Sketch
from fleet_tune.base.task_data import Dataset, TaskData
from policies.arrays import Floats


def test_equation_3_by_hand() -> None:
    # Two tasks that count once and three times: (1 + 3 * 2) / (2 + 3 * 4).
    assert best_k([1.0, 2.0], [2.0, 4.0], [1, 3]) == pytest.approx(7 / 14)
    assert best_k([1.0, 2.0], [1.0, 2.0], [1, 3]) == 1.0


@pytest.mark.parametrize(("count", "k"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 4)])
def test_chance_by_counting(count: int, k: int) -> None:
    costs = np.array([5.0, 1.0, 3.0, 9.0])
    counted = np.mean([sorted(drawn)[k - 1] for drawn in itertools.combinations(costs.tolist(), count)])
    assert expected_kth(costs, count, k) == pytest.approx(counted)


def test_the_kth_best_of_those_that_are_kept(data: TaskData, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scorer that ranks the slowest first: of ten kept the best is the tenth slowest, the third best the eighth."""
    ran = np.sort(data.cost_secs[data.ok])

    def scores(sketch: Sketch, matrix: Floats, _: object) -> Floats:
        assert np.array_equal(matrix, data.decisions[sketch.index])
        return -data.cost_secs[data.rows(sketch.index)]

    monkeypatch.setattr(draft_penalties, "SCORERS", {"slowest": scores})
    monkeypatch.setattr(draft_penalties, "feasible", lambda _, matrix, __: np.ones(len(matrix), dtype=bool))
    share = 10 / len(ran)
    assert found_secs(data, "slowest", share, 1) == ran[-10]
    assert found_secs(data, "slowest", share, 3) == ran[-8]
    assert found_secs(data, "slowest", share, 99) == ran[-1]  # fewer are kept: the last


def test_a_later_place_is_worse_and_a_larger_draft_better() -> None:
    details = run([DATA / "grouped" / "znver5-1.ftd"]).details
    (by_scorer,) = details["best_k"].values()
    assert details["tasks"] == {"grouped/znver5-1": 6}
    for line in by_scorer.values():
        for kept in KEPT:
            places = [line[f"{kept}@{k}"] for k in PLACES]
            assert places == sorted(places, reverse=True)
        assert all(0 < line[f"256@{k}"] <= line[f"512@{k}"] <= 1 for k in PLACES)
    assert by_scorer["our analyzer"]["256@1"] > by_scorer["chance"]["256@1"]
    assert "| grouped/znver5-1 (6 tasks): equation 1 |" in BENCHMARK.table({"details": details})


def test_a_set_without_described_tasks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "read", lambda _: Dataset("m", (), ()))
    with pytest.raises(BenchError, match=r"no task of none\.ftd is described: leave it out"):
        run([Path("none.ftd")])
