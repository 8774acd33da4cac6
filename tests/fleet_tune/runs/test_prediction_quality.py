"""Rank correlation of predicted and measured run times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_tune.base.domain import Measurement, Outcome, Record
from fleet_tune.runs.prediction_quality import LEAST, PredictionQuality
from tests.helpers.records import make_record
from tests.helpers.tasks import make_candidate


def record(task: str, number: int, predicted_secs: float | None, secs: float) -> Record:
    candidate = replace(make_candidate(task, number), predicted_secs=predicted_secs)
    return make_record(candidate, Measurement(Outcome.OK, (secs,)), f"{task}-{number}")


def observe(quality: PredictionQuality, task: str, pairs: list[tuple[float, float]]) -> None:
    for number, (predicted, secs) in enumerate(pairs):
        quality.observe(record(task, number, predicted, secs))


def test_the_order_counts_and_not_the_level() -> None:
    quality = PredictionQuality()
    observe(quality, "a@x", [(n, 1e-3 * n**2) for n in range(1, LEAST + 1)])
    assert quality.of_task("a@x") == pytest.approx(1.0)


def test_a_class_is_the_mean_of_its_tasks_by_their_trials() -> None:
    quality = PredictionQuality()
    observe(quality, "a@x", [(n, n) for n in range(1, 9)])
    observe(quality, "b@x", [(n, 20 - n) for n in range(1, 17)])
    observe(quality, "few@x", [(n, n) for n in range(1, LEAST)])
    observe(quality, "a@y", [(n, n) for n in range(1, 9)])
    assert quality.of_class("x") == pytest.approx((8 * 1 + 16 * -1) / 24)
    assert quality.of_class("y") == pytest.approx(1.0)
    assert quality.of_class("z") is None
    assert quality.of_task("few@x") is None


def test_only_the_last_trials_count_where_that_is_asked() -> None:
    quality = PredictionQuality(last=8)
    observe(quality, "a@x", [(n, -n + 100) for n in range(1, 9)] + [(n, n) for n in range(1, 9)])
    assert quality.of_task("a@x") == pytest.approx(1.0)


def test_failures_revisions_constants_and_candidates_without_a_prediction_say_nothing() -> None:
    quality = PredictionQuality()
    for number in range(LEAST):
        quality.observe(record("a@x", number, None, 1.0 + number))
        quality.observe(replace(record("b@x", number, 1.0 + number, 1.0 + number), revision=1))
        quality.observe(record("c@x", number, 1.0, 1.0 + number))
        failed = make_record(
            replace(make_candidate("d@x", number), predicted_secs=1.0), Measurement(Outcome.BUILD_ERROR)
        )
        quality.observe(failed)
    assert [quality.of_task(f"{name}@x") for name in "abcd"] == [None] * 4
