"""The Gaussian process against constants worked out by hand, and what it makes of slow and of many records."""

from __future__ import annotations

import math

import numpy as np
import pytest

from policies.cost_models.gaussian import (
    LENGTH,
    MOST_RECORDS,
    SLOW_NOISE,
    USUAL_AMPLITUDE,
    USUAL_NOISE,
    GaussianProcessModel,
)
from policies.features.table import FeatureTable


def table(points: list[list[float]], prior: list[float] | None = None) -> FeatureTable:
    standard = np.array(points, dtype=np.float32)
    symbolic = standard.copy()
    if prior is not None:
        symbolic[:, 0] = prior
    return FeatureTable({"standard": standard, "symbolic": symbolic})


def groups(count: int) -> np.ndarray:
    return np.zeros(count, dtype=np.int64)


def test_one_record_is_followed_as_far_as_it_is_near() -> None:
    """The only record is the level itself, so its residual is 0: the mean is the level everywhere, the variance
    ``a - (a e)^2 / (a + b)`` with ``e`` = exp(-d^2 / 2 l)."""
    model = GaussianProcessModel()
    model.fit(table([[0.0, 0.0]]), np.array([-7.0]), groups(1))
    mean, deviation = model.predict(table([[0.0, 0.0], [math.sqrt(2 * LENGTH), 0.0], [9.0, 0.0]]))
    assert mean == pytest.approx([-7.0] * 3)
    a, b = USUAL_AMPLITUDE, USUAL_NOISE
    expected = [a - a * a / (a + b), a - (a * math.exp(-1.0)) ** 2 / (a + b), a]
    assert deviation == pytest.approx(np.sqrt(expected), rel=1e-5)


def test_two_far_records_are_each_shrunk_towards_the_level() -> None:
    """Far apart nothing is shared: a residual ``r`` is predicted as ``r a / (a + b)`` at its own place, with the noise
    of a slow one ``1 + (2 r)^2`` times as large."""
    model = GaussianProcessModel()
    model.fit(table([[0.0, 0.0], [50.0, 0.0]]), np.array([-7.5, -6.5]), groups(2))  # the level is -7
    mean, _ = model.predict(table([[0.0, 0.0], [50.0, 0.0]]))
    a, b = USUAL_AMPLITUDE, USUAL_NOISE
    slow = b * (1 + (SLOW_NOISE * 0.5) ** 2)
    assert mean == pytest.approx([-7.0 - 0.5 * a / (a + b), -7.0 + 0.5 * a / (a + slow)], rel=1e-5)


def test_it_starts_from_the_analyzer_and_from_the_others_of_an_unknown_sketch() -> None:
    model = GaussianProcessModel(offset_column=0)
    points = [[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]]
    model.fit(table(points, [-9.0, -8.0, math.nan]), np.array([-8.0, -7.0, -5.0]), groups(3))  # the level is 1
    far = table([[0.0, 99.0], [0.0, 99.0]], [-9.5, math.nan])
    mean, _ = model.predict(far)
    assert mean == pytest.approx([-8.5, -5.0])


def test_a_record_that_counts_more_is_believed_more() -> None:
    points, logs = table([[0.0, 0.0], [50.0, 0.0]]), np.array([-7.5, -6.5])
    plain, sure = GaussianProcessModel(), GaussianProcessModel()
    plain.fit(points, logs, groups(2))
    sure.fit(points, logs, groups(2), np.array([4.0, 1.0]))
    assert sure.predict(points)[0][0] < plain.predict(points)[0][0]


def test_of_many_records_the_fastest_and_the_latest_count() -> None:
    count = MOST_RECORDS + 60
    rng = np.random.default_rng(0)
    points = rng.standard_normal((count, 3)).astype(np.float32)
    logs = rng.uniform(-5.0, -4.0, count)
    logs[3] = -9.0  # early and fastest
    model = GaussianProcessModel()
    model.fit(table(points.tolist()), logs, groups(count))
    kept = np.argsort(logs)[: MOST_RECORDS // 2]
    latest = np.setdiff1d(np.arange(count), kept)[-MOST_RECORDS // 2 :]
    rows = np.sort(np.concatenate([kept, latest]))
    assert 3 in rows
    small = GaussianProcessModel()
    small.fit(table(points[rows].tolist()), logs[rows], groups(len(rows)))
    for one, other in zip(model.predict(table([[0.0] * 3])), small.predict(table([[0.0] * 3])), strict=True):
        assert one == pytest.approx(other)
