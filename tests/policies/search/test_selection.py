"""Selection of a batch: diversity and distance, also on hostile input."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.search.selection import greedy, neighbourhood_discount
from tests.helpers.properties import examples


def test_neighbourhood_discount() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [9.0, 0.0]])
    factors = neighbourhood_discount(points, np.array([[0.0, 0.0]]), 1.0)
    assert factors == pytest.approx([0.0, 1 - math.exp(-0.5), 1.0])
    assert neighbourhood_discount(points, np.empty((0, 2)), 1.0).tolist() == [1.0] * 3
    assert neighbourhood_discount(points, points, 0.0).tolist() == [1.0] * 3
    with pytest.raises(ValueError, match="negative"):
        neighbourhood_discount(points, points, -1.0)


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


def test_infinite_scores_come_first_and_do_not_hide_the_others() -> None:
    points, parts = np.arange(4.0)[:, None] * 10, np.arange(4)[:, None]
    scores = np.array([0.1, math.inf, 0.2, math.inf])
    assert greedy(scores, parts, points, 4, 0.0, 1.0) == [1, 3, 2, 0]


@examples(40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.floats(0.0, 3.0))
def test_greedy_is_near_the_best_set(seed: int, count: int, alpha: float) -> None:
    """The objective is monotone and submodular, so that greedy choice reaches 1 - 1/e of the optimum."""
    rng = np.random.default_rng(seed)
    scores = rng.random(7)
    parts = rng.integers(0, 3, size=(7, 4))

    def objective(chosen: tuple[int, ...] | list[int]) -> float:
        covered = sum(len(set(parts[list(chosen), column])) for column in range(4))
        return float(scores[list(chosen)].sum() / scores.max() + alpha * covered / 4)

    chosen = greedy(scores, parts, np.zeros((7, 1)), count, alpha, 0.0)
    assert len(set(chosen)) == count
    best = max(objective(each) for each in combinations(range(7), count))
    assert objective(chosen) >= (1 - 1 / math.e) * best - 1e-9


@given(st.integers(0, 2**32 - 1), st.just(0.0) | st.just(1e-300) | st.floats(0.01, 10.0))
def test_discount_is_a_factor_and_zero_where_something_is_pending(seed: int, radius: float) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 6, size=(8, 3)).astype(np.float64)
    factors = neighbourhood_discount(points, points[:3], radius)
    assert ((factors >= 0) & (factors <= 1)).all()
    if radius > 1e-300:
        assert factors[:3] == pytest.approx(np.zeros(3), abs=1e-12)
    # More centres never raise a factor.
    assert (factors <= neighbourhood_discount(points, points[:2], radius) + 1e-12).all()


def test_selection_is_the_same_for_the_same_input() -> None:
    rng = np.random.default_rng(0)
    scores, parts, points = rng.random(200), rng.integers(0, 9, size=(200, 5)), rng.random((200, 6)) * 5
    assert greedy(scores, parts, points, 16, 0.1, 1.0) == greedy(scores, parts, points, 16, 0.1, 1.0)
    # Ties go to the first.
    assert greedy(np.ones(5), np.zeros((5, 1), dtype=np.int64), np.zeros((5, 1)), 2, 0.0, 0.0) == [0, 1]
