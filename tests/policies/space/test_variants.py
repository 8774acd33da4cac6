"""Candidates whose blocks stand at few places, and those of few variants."""

from __future__ import annotations

import numpy as np

from fleet_tune.base.sketch import Location, Sketch, Tile
from policies.space.sampling import is_valid, sample
from policies.space.variants import chosen_variants, of_few_variants, with_few_places

PLACES = (-1, 0, 1, 2)
# Two blocks with four places each: sixteen combinations, the last column of each decision.
SKETCH = Sketch(
    0,
    "r",
    "t",
    (Location("a", PLACES), Tile(64, 3, 64), Location("b", PLACES)),
    (),
    "a toy",
    variants=((),) * 16,
    variant_of=tuple(range(16)),
)
PLAIN = Sketch(1, "r", "t", (Location("a", PLACES), Tile(64, 3, 64)), (), "a toy")


def test_few_places_change_nothing_but_the_places() -> None:
    matrix = sample(SKETCH, 400, np.random.default_rng(0))
    assert len(np.unique(chosen_variants(SKETCH, matrix))) == 16
    placed = with_few_places(SKETCH, matrix, 3, np.random.default_rng(1))
    assert is_valid(SKETCH, placed).all()
    assert placed[:, 1:4].tolist() == matrix[:, 1:4].tolist()
    assert set(chosen_variants(SKETCH, placed)) == set(chosen_variants(SKETCH, matrix[:3]))
    assert len(with_few_places(SKETCH, matrix[:0], 3, np.random.default_rng(1))) == 0


def test_a_sketch_without_variants_is_left_alone() -> None:
    matrix = sample(PLAIN, 40, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    assert with_few_places(PLAIN, matrix, 3, rng) is matrix
    assert of_few_variants(PLAIN, matrix, 1) is matrix
    assert rng.random() == np.random.default_rng(1).random()  # nothing was drawn: such a draft is what it was


def test_those_of_the_most_frequent_variants_stay_in_their_order() -> None:
    matrix = np.array([[a, 64, 1, 1, b] for a, b in [(1, 1), (0, 0), (2, 3), (1, 1), (0, 0), (1, 1), (3, 3)]])
    assert of_few_variants(SKETCH, matrix, 1)[:, [0, 4]].tolist() == [[1, 1]] * 3
    assert of_few_variants(SKETCH, matrix, 2)[:, [0, 4]].tolist() == [[1, 1], [0, 0], [1, 1], [0, 0], [1, 1]]
    assert of_few_variants(SKETCH, matrix, 16).tolist() == matrix.tolist()
    assert len(of_few_variants(SKETCH, matrix[:0], 2)) == 0
