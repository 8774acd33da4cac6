"""Acquisition functions, also on hostile input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from policies.search.acquisition import (
    Acquisition,
    ExpectedImprovement,
    PredictedMean,
    expected_improvement,
    improvement_of_secs,
    throughput_of_secs,
)

ALL = pytest.mark.parametrize(
    "acquire",
    [ExpectedImprovement(), PredictedMean()],
    ids=lambda acquire: acquire.name,
)


def test_expected_improvement_by_hand() -> None:
    # mu 3, best 2, sigma 2: Z = 0.5, Phi = 0.6914624613, phi = 0.3520653268.
    gain = expected_improvement(np.array([3.0, 2.0, 1.0]), np.array([2.0, 2.0, 2.0]), 2.0)
    assert gain[0] == pytest.approx(1.0 * 0.6914624612740131 + 2 * 0.3520653267642995)
    assert gain[1] == pytest.approx(2 * 0.3989422804014327)
    assert gain[2] == pytest.approx(-1.0 * 0.3085375387259869 + 2 * 0.3520653267642995)


def test_expected_improvement_without_deviation() -> None:
    assert expected_improvement(np.array([3.0, 1.0]), np.zeros(2), 2.0).tolist() == [1.0, 0.0]


def test_expected_improvement_of_hostile_input() -> None:
    nan, inf = math.nan, math.inf
    mean = np.array([nan, 1.0, 1.0, inf, -inf, 1.0, 5.0])
    deviation = np.array([1.0, nan, -1.0, 0.0, 1.0, inf, 0.0])
    assert expected_improvement(mean, deviation, 2.0).tolist() == [0.0, 0.0, 0.0, inf, 0.0, inf, 3.0]
    assert expected_improvement(np.empty(0), np.empty(0), 1.0).shape == (0,)
    # Nothing measured: the means rank.
    for best in (-inf, nan):
        assert expected_improvement(np.array([3.0, 1.0, nan]), np.ones(3), best).tolist() == [2.0, 0.0, 0.0]
    assert expected_improvement(np.array([3.0]), np.ones(1), inf).tolist() == [0.0]
    with pytest.raises(ValueError, match="differ"):
        expected_improvement(np.ones(2), np.ones(3), 0.0)


@given(
    arrays(np.float64, 5, elements=st.floats(allow_nan=True, allow_infinity=True)),
    arrays(np.float64, 5, elements=st.floats(allow_nan=True, allow_infinity=True)),
    st.floats(allow_nan=True, allow_infinity=True),
)
def test_expected_improvement_is_never_negative_nor_nan(mean: np.ndarray, deviation: np.ndarray, best: float) -> None:
    with np.errstate(all="ignore"):
        gain = expected_improvement(mean, deviation, best)
    assert not np.isnan(gain).any()
    assert (gain >= 0).all()


def test_improvement_of_seconds() -> None:
    # Surely twice as fast: a log ratio of ln 2; surely slower: none.
    gain = improvement_of_secs(np.log([0.5, 2.0]), np.zeros(2), 1.0)
    assert gain == pytest.approx([math.log(2), 0.0])
    ranked = improvement_of_secs(np.log([0.5, 2.0]), np.ones(2), math.inf)
    assert ranked[0] > ranked[1]


def test_mean_by_hand() -> None:
    # Incumbent of one second: twice and half its throughput.
    mean, deviation = np.log([0.5, 2.0]), np.log([2.0, 4.0])
    assert throughput_of_secs(mean, deviation, 1.0) == pytest.approx([2.0, 0.5])
    assert throughput_of_secs(mean, np.array([math.inf, math.nan]), 1.0).tolist() == pytest.approx([2.0, 0.0])


@ALL
def test_all_prefer_the_faster_of_two_alike(acquire: Acquisition) -> None:
    for best in (0.5, math.inf):
        scores = acquire(np.log([2.0, 1.0, 3.0]), np.full(3, 0.3), best)
        assert scores.argmax() == 1
    assert acquire(np.empty(0), np.empty(0), 1.0).shape == (0,)


@ALL
def test_energies_order_candidates_as_scores_do(acquire: Acquisition) -> None:
    mean, deviation = np.log([2.0, 0.5, 1.0, 3.0]), np.array([0.1, 0.2, 0.3, 0.4])
    scores, energies = acquire(mean, deviation, 1.5), acquire.energy(mean, deviation, 1.5)
    assert np.argsort(energies, kind="stable").tolist() == np.argsort(-scores, kind="stable").tolist()


def test_the_energy_of_the_mean_is_in_log_seconds() -> None:
    mean = np.log([2.0, 0.5])
    assert PredictedMean().energy(mean, np.ones(2), 1.0) is mean


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
