"""Expected improvement, contextual epsilon and batch selection, also on hostile input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from policies.acquisition import contextual_epsilon, epsilon_of_secs, expected_improvement, improvement_of_secs
from policies.selection import greedy, neighbourhood_discount, per_second


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


def test_contextual_epsilon() -> None:
    assert contextual_epsilon(np.array([1.0, 3.0]), 10.0) == pytest.approx(0.2)
    assert contextual_epsilon(np.array([1.0, 3.0]), 10.0, 0.3, 0.5) == 0.3
    assert contextual_epsilon(np.array([1.0, math.nan, -1.0, math.inf]), 10.0) == pytest.approx(0.1)
    for best in (0.0, -1.0, math.nan, math.inf):
        assert contextual_epsilon(np.array([1.0]), best, 0.0, 0.4) == 0.4
    assert contextual_epsilon(np.empty(0), 10.0, 0.0, 0.4) == 0.4
    with pytest.raises(ValueError, match="low <= high"):
        contextual_epsilon(np.ones(1), 1.0, 0.5, 0.2)
    # Everything as fast as the incumbent, 20% uncertain.
    assert epsilon_of_secs(np.log([2.0, 2.0]), np.array([0.2, 0.2]), 2.0) == pytest.approx(0.2)
    assert epsilon_of_secs(np.zeros(2), np.ones(2), math.inf, 0.1, 0.3) == 0.3


def test_neighbourhood_discount() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [9.0, 0.0]])
    factors = neighbourhood_discount(points, np.array([[0.0, 0.0]]), 1.0)
    assert factors == pytest.approx([0.0, 1 - math.exp(-0.5), 1.0])
    assert neighbourhood_discount(points, np.empty((0, 2)), 1.0).tolist() == [1.0] * 3
    assert neighbourhood_discount(points, points, 0.0).tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="negative"):
        neighbourhood_discount(points, points, -1.0)


def test_per_second() -> None:
    assert per_second(np.array([1.0, 1.0, 1.0, 1.0]), np.array([2.0, 0.0, math.nan, math.inf])).tolist() == [
        0.5,
        1.0,
        1.0,
        1.0,
    ]


def test_greedy_is_by_score_without_diversity() -> None:
    points = np.array([[0.0], [0.1], [5.0]])
    parts = np.array([[1, 1], [1, 2], [2, 1]])
    assert greedy(np.array([0.5, 1.0, 0.7]), parts, points, 3, 0.0, 0.0) == [1, 2, 0]


def test_greedy_covers_components_by_hand() -> None:
    # Equation 3 with alpha 1 and two components: scores normalised to 1, 0.9, 0.5.
    scores = np.array([1.0, 0.9, 0.5])
    parts = np.array([[1, 1], [1, 1], [2, 2]])
    points = np.zeros((3, 1))
    # First 0 (1 + 2/2); then 1 is worth 0.9 + 0 and 2 is worth 0.5 + 1.
    assert greedy(scores, parts, points, 2, 1.0, 0.0) == [0, 2]
    # With 2's components pending already, 1 comes first of the rest.
    assert greedy(scores, parts, points, 2, 1.0, 0.0, np.array([[2, 2]])) == [0, 1]


def test_greedy_avoids_the_neighbourhood_of_its_choices() -> None:
    points = np.array([[0.0], [0.1], [5.0]])
    parts = np.zeros((3, 1), dtype=np.int64)
    assert greedy(np.array([1.0, 0.99, 0.5]), parts, points, 2, 0.0, 1.0) == [0, 2]


def test_greedy_on_hostile_input() -> None:
    points, parts = np.zeros((4, 1)), np.zeros((4, 1), dtype=np.int64)
    scores = np.array([math.nan, -1.0, math.inf, 0.5])
    assert greedy(scores, parts, points, 9, 0.0, 0.0)[:2] == [2, 3]
    assert sorted(greedy(np.full(4, math.nan), parts, points, 4, 0.1, 1.0)) == [0, 1, 2, 3]
    assert greedy(np.empty(0), np.empty((0, 1), dtype=np.int64), np.empty((0, 1)), 3, 0.1, 1.0) == []
    assert greedy(np.ones(4), parts, points, 0, 0.0, 0.0) == []
    with pytest.raises(ValueError, match="cannot select"):
        greedy(np.ones(4), parts, points, -1, 0.0, 0.0)
