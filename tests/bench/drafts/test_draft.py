"""The draft's figures by hand, and on a small made-up dataset."""

from __future__ import annotations

import math

import pytest

from bench.datasets import first, with_enough
from bench.drafts.draft import BENCHMARK, best_1, random_best_1, speed_figures
from bench.drafts.draft_process import SCORERS, points, quality, speed
from bench.result import BenchError
from fleet_tune.base.task_data import Dataset, TaskData
from tests.bench.made_up import made_up


def test_best_1_is_equation_3() -> None:
    # Two tasks with weights 1 and 3, two seeds: (1 + 6) / (2 + 6) and (1 + 6) / (1 + 12).
    assert best_1([[1.0, 1.0], [2.0, 2.0]], [[2.0, 1.0], [2.0, 4.0]], [1, 3]) == pytest.approx([7 / 8, 7 / 13])
    assert best_1([[1.0]], [[math.inf]], [1]) == [0.0]


def test_quality_lies_between_the_best_and_the_worst(data: TaskData) -> None:
    best = quality(data, 2, 64, 8, None)
    assert set(best) == {*SCORERS, "ideal"}
    for name in SCORERS:
        assert all(found >= ideal for found, ideal in zip(best[name], best["ideal"], strict=True))
    everything = quality(data, 1, 64, 1, None)
    assert everything["calibrated"] == everything["ideal"]  # a share of all of them loses nothing
    assert all(math.isfinite(predicted) and measured < 0 for predicted, measured in points(data, 64, None))


def test_a_task_with_too_few_candidates_is_left_out(data: TaskData) -> None:
    dataset = Dataset("m", (), (first(data, 64), data))
    assert with_enough(dataset, 64) == (1,)
    assert with_enough(dataset, 63) == (0, 1)
    with pytest.raises(BenchError, match="more than 64"):
        with_enough(dataset, 64, limit=64)


def test_random_choice_of_everything_is_perfect(data: TaskData) -> None:
    dataset = Dataset("m", (), (data, made_up("other", seed=3)))
    assert random_best_1(dataset, 2, 64, 1, 1000)["all"] == pytest.approx([1.0, 1.0])
    chance = random_best_1(dataset, 2, 64, 8, 1000)
    assert set(chance) == {"all", 0, 1}
    assert all(0 < score < 1 for score in chance["all"])


def test_speed_is_the_harmonic_mean() -> None:
    assert speed_figures([{"analyzer": 1.0}, {}, {"analyzer": 3.0}]) == {"analyzer": pytest.approx(1.5)}


def test_speed_is_that_of_the_described_sketches(data: TaskData) -> None:
    found = speed(data, 64)
    assert set(found) == {"analyzer", "calibrated", "analyzer_population", "calibrated_population"}
    assert all(rate > 0 for rate in found.values())
    with pytest.raises(BenchError, match="described"):
        speed_figures([{}])


def test_its_tables() -> None:
    scores = {"analyzer": 0.9, "calibrated": 0.99, "with-model": 1.0, "metaschedule": 0.9, "random": 0.8}
    speed = {"analyzer": 2e6, "calibrated": 1e6, "analyzer_population": 1e6, "calibrated_population": 9e5}
    details = {
        "best_1": scores,
        "best_1_spread": {name: {"min": score} for name, score in scores.items()},
        "best_1_by_task": {"conv": scores},
        "speed": speed,
        "speed_by_task": {"conv": speed, "undescribed": {}},
        "candidates_a_call": 16384,
        "share": 8,
        "calibration": 64,
        "too_few": ["transpose", "pool"],
    }
    text = BENCHMARK.table({"details": details})
    assert "| `conv` | 0.900 | 0.990 | 1.000 | 0.900 | 0.800 |" in text
    assert "| as many of each | 2,000,000 | 1,000,000 | 1,000,000 | 900,000 |" in text
    assert text.endswith("Skipped, with too few candidates: `transpose`, `pool`.")
    assert "Skipped" not in BENCHMARK.table({"details": {**details, "too_few": []}})
