"""Top-k and rank correlation by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from policies.cost_models.rank_quality import best_of_first, rank_correlation, top_k

COSTS = np.array([4.0, 2.0, math.inf, 1.0])


def test_top_k_is_the_best_over_the_best_of_those_ranked_first() -> None:
    predicted = np.array([0.1, 0.3, 0.2, 0.4])  # the best is ranked last
    assert top_k(predicted, COSTS, 1) == 1.0 / 4.0
    assert top_k(predicted, COSTS, 2) == 1.0 / 4.0  # the second one did not run
    assert top_k(predicted, COSTS, 3) == 1.0 / 2.0
    assert top_k(predicted, COSTS, 4) == 1.0
    assert top_k(np.array([1.0, 1.0, 0.0, 1.0]), COSTS, 1) == 0.0  # it ranks a failure first
    with pytest.raises(ValueError, match="no candidate ran"):
        top_k(np.zeros(1), np.array([math.inf]), 1)


def test_best_of_first_is_in_seconds() -> None:
    predicted = np.array([0.1, 0.3, 0.2, 0.4])
    assert [best_of_first(predicted, COSTS, k) for k in (1, 3, 4)] == [4.0, 2.0, 1.0]
    assert best_of_first(-COSTS, COSTS, 1) == math.inf


def test_rank_correlation_is_that_of_the_ranks_with_ties_at_their_mean() -> None:
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 100.0, 1000.0])) == pytest.approx(1.0)
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1.0)
    # Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: covariance 1.125, deviations sqrt(1.125) and sqrt(1.25).
    found = rank_correlation(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert found == pytest.approx(1.125 / math.sqrt(1.125 * 1.25))
    assert math.isnan(rank_correlation(np.ones(3), np.arange(3.0)))
