"""Acquisition functions of the laboratory, also on hostile input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.models.laboratory.acquisition import (
    ConfidenceBound,
    ProbabilityOfImprovement,
    confidence_bound_of_secs,
    probability_of_improvement,
    probability_of_secs,
)
from policies.search.acquisition import Acquisition, throughput_of_secs

ALL = pytest.mark.parametrize(
    "acquire",
    [ProbabilityOfImprovement(), ConfidenceBound()],
    ids=lambda acquire: acquire.name,
)


def test_probability_of_improvement_by_hand() -> None:
    # Z = 0.5, 0 and -0.5.
    found = probability_of_improvement(np.array([3.0, 2.0, 1.0]), np.array([2.0, 2.0, 2.0]), 2.0)
    assert found == pytest.approx([0.6914624612740131, 0.5, 0.3085375387259869])
    assert probability_of_improvement(np.array([3.0, 2.0, 1.0]), np.zeros(3), 2.0).tolist() == [1.0, 0.0, 0.0]
    # Half as long with a deviation of ln 2: one deviation better.
    assert probability_of_secs(np.log([0.5]), np.log([2.0]), 1.0) == pytest.approx([0.8413447460685429])


def test_probability_of_improvement_of_hostile_input() -> None:
    nan, inf = math.nan, math.inf
    mean = np.array([nan, 1.0, 1.0, inf, -inf, 1.0, inf])
    deviation = np.array([1.0, nan, -1.0, 0.0, 1.0, inf, inf])
    assert probability_of_improvement(mean, deviation, 2.0).tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 0.5, 1.0]
    for best in (-inf, nan):
        assert probability_of_improvement(np.array([3.0, nan]), np.ones(2), best).tolist() == [1.0, 0.0]
    assert probability_of_improvement(np.array([3.0, inf]), np.ones(2), inf).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="differ"):
        probability_of_improvement(np.ones(2), np.ones(3), 0.0)


def test_confidence_bound_and_mean_by_hand() -> None:
    mean, deviation = np.log([0.5, 2.0]), np.log([2.0, 4.0])
    # Incumbent of one second: twice and half its throughput; a deviation doubles and quadruples that.
    assert throughput_of_secs(mean, deviation, 1.0) == pytest.approx([2.0, 0.5])
    assert confidence_bound_of_secs(mean, deviation, 1.0) == pytest.approx([4.0, 2.0])
    assert confidence_bound_of_secs(mean, deviation, 1.0, 2.0) == pytest.approx([8.0, 8.0])
    assert confidence_bound_of_secs(mean, deviation, 3.0) == pytest.approx([12.0, 6.0])
    assert confidence_bound_of_secs(mean, deviation, math.inf) == pytest.approx([4.0, 2.0])
    assert confidence_bound_of_secs(mean, np.array([math.inf, -1.0]), 1.0).tolist() == [math.inf, 0.0]
    assert throughput_of_secs(mean, np.array([math.inf, math.nan]), 1.0).tolist() == pytest.approx([2.0, 0.0])
    with pytest.raises(ValueError, match="cannot be negative"):
        confidence_bound_of_secs(mean, deviation, 1.0, -1.0)


@ALL
def test_all_prefer_the_faster_of_two_alike(acquire: Acquisition) -> None:
    for best in (0.5, math.inf):
        scores = acquire(np.log([2.0, 1.0, 3.0]), np.full(3, 0.3), best)
        assert scores.argmax() == 1 or (isinstance(acquire, ProbabilityOfImprovement) and math.isinf(best))
    assert acquire(np.empty(0), np.empty(0), 1.0).shape == (0,)


@ALL
def test_energies_order_candidates_as_scores_do(acquire: Acquisition) -> None:
    mean, deviation = np.log([2.0, 0.5, 1.0, 3.0]), np.array([0.1, 0.2, 0.3, 0.4])
    scores, energies = acquire(mean, deviation, 1.5), acquire.energy(mean, deviation, 1.5)
    assert np.argsort(energies, kind="stable").tolist() == np.argsort(-scores, kind="stable").tolist()


@ALL
@given(
    arrays(np.float64, 4, elements=st.floats(allow_nan=True, allow_infinity=True)),
    arrays(np.float64, 4, elements=st.floats(allow_nan=True, allow_infinity=True)),
    st.floats(allow_nan=True, allow_infinity=True),
)
def test_all_are_never_negative_nor_nan(
    acquire: Acquisition, mean: np.ndarray, deviation: np.ndarray, best: float
) -> None:
    with np.errstate(all="ignore"):
        scores = acquire(mean, deviation, best)
    assert scores.shape == (4,)
    assert (scores >= 0).all()  # false for NaN
    useless = np.isnan(mean) | np.isnan(deviation) | (deviation < 0) | (mean == math.inf)
    assert (scores[useless] == 0).all()
