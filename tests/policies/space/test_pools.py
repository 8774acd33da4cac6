"""Pools: distinct candidates, their keys and neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_tune.base.sketch import Sketch
from policies.space.pools import NEIGHBOURS, Pool
from policies.space.sampling import row_keys, sample, unique_rows

RNG = np.random.default_rng


@pytest.fixture
def pool(tiled: Sketch) -> Pool:
    matrix = sample(tiled, 500, RNG(3))
    return Pool(tiled, matrix[unique_rows(matrix)][:400])


def test_rows_must_be_distinct_candidates(tiled: Sketch) -> None:
    matrix = sample(tiled, 3, RNG(0))
    with pytest.raises(ValueError, match="repeats"):
        Pool(tiled, matrix[[0, 1, 0]])
    broken = matrix.copy()
    broken[1, 0] = 77
    with pytest.raises(ValueError, match="no candidates"):
        Pool(tiled, broken)


def test_neighbours_differ_in_few_decisions(pool: Pool) -> None:
    near = pool.neighbours
    assert near.shape == (400, NEIGHBOURS)
    for row in range(0, 400, 50):
        assert row not in near[row]
        assert len(set(near[row].tolist())) == NEIGHBOURS
        differing = [
            sum(
                not np.array_equal(pool.matrix[row, at : at + d.width], pool.matrix[other, at : at + d.width])
                for d, at in zip(pool.sketch.decisions, pool.sketch.offsets, strict=True)
            )
            for other in range(400)
        ]
        others = sorted(differing[:row] + differing[row + 1 :])
        assert sorted(differing[other] for other in near[row]) == others[:NEIGHBOURS]


def test_rows_are_found_by_their_keys_and_cannot_be_changed(pool: Pool) -> None:
    assert list(pool.keys) == row_keys(pool.matrix)
    assert [pool.row_of[key] for key in pool.keys[:5]] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="read-only"):
        pool.matrix[0, 0] = 1


def test_what_is_made_of_a_pool_is_made_once(pool: Pool) -> None:
    made: list[int] = []
    for _ in range(2):
        assert pool.once("rows", lambda: made.append(1) or len(pool)) == 400
    assert made == [1]
    assert pool.once("other", lambda: 3) == 3
