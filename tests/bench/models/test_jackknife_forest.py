"""The infinitesimal jackknife of a forest, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from bench.models.laboratory.jackknife_forest import in_bag_counts, jackknife_variance


def test_the_variance_by_hand() -> None:
    # Two trees, two records; the first tree has the first record twice, the second one each. They predict 3 and 1.
    counts = np.array([[2.0, 0.0], [1.0, 1.0]])
    each = np.array([[3.0, 5.0], [1.0, 5.0]])
    # Away from the mean: 1 and -1. C = 1/2 (1 * 1 + 0 * -1) = 1/2 and -1/2; V = 1/4 + 1/4 - 2/4 * 2 < 0.
    assert jackknife_variance(each, counts).tolist() == [0.0, 0.0]
    # Ten copies of both trees: the sum of squares stays 1/2, and chance adds 2 / 20^2 * 20 = 0.1.
    many = np.tile(counts, (10, 1)), np.tile(each, (10, 1))
    assert jackknife_variance(many[1], many[0]) == pytest.approx([0.4, 0.0])


def test_counts_are_those_of_the_forest_that_is_grown() -> None:
    rng = np.random.default_rng(0)
    matrix, log_secs = rng.random((40, 5)), rng.random(40)
    grown = RandomForestRegressor(n_estimators=10, max_features=5, random_state=7).fit(matrix, log_secs)
    counts = in_bag_counts(40, 10, 7, log_secs)
    assert counts.sum(axis=1).tolist() == [40.0] * 10
    for count, sample in zip(counts, grown.estimators_samples_, strict=True):
        assert count.tolist() == np.bincount(sample, minlength=40).tolist()
