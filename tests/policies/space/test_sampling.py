"""Decision matrices: every row is a candidate, tiles are uniform, sizes are exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.sketch import Choice, Location, Sketch, Tile
from policies.space import sampling
from policies.space.sampling import (
    crossover,
    decision_ids,
    draw_tile,
    enumerate_all,
    is_valid,
    log_coordinates,
    mutate,
    prime_factors,
    row_keys,
    sample,
    space_size,
    tile_count,
    tile_table,
    unique_rows,
)
from tests.helpers.properties import examples

tiles = st.builds(Tile, st.integers(1, 600), st.integers(1, 5), st.sampled_from([1, 4, 16, 64, 1024]))


def of(*decisions: Tile | Choice | Location) -> Sketch:
    return Sketch(0, "rule", "trace", decisions, ())


def test_prime_factors() -> None:
    assert prime_factors(360) == (2, 2, 2, 3, 3, 5)
    assert prime_factors(1) == ()
    with pytest.raises(ValueError, match="at least 1"):
        prime_factors(0)


def test_tile_count_by_hand() -> None:
    # 8 into two factors with the last at most 4: 8*1, 4*2, 2*4.
    assert tile_count(8, 2, 4) == 3
    assert tile_table(8, 2, 4).tolist() == [[8, 1], [4, 2], [2, 4]]
    # 56 = 2^3 * 7 into four: C(6, 3) * C(4, 3).
    assert tile_count(56, 4, 64) == 80
    # A prime beyond the limit can only have 1 innermost.
    assert tile_table(197, 2, 64).tolist() == [[197, 1]]


@given(tiles)
@examples(60)
def test_table_is_complete_and_valid(tile: Tile) -> None:
    if tile.parts == 1 and tile.extent > tile.innermost_limit:
        with pytest.raises(ValueError, match="no factorisation"):
            draw_tile(tile, 3, np.random.default_rng(0))
        return
    table = tile_table(tile.extent, tile.parts, tile.innermost_limit)
    assert len(table) == tile_count(tile.extent, tile.parts, tile.innermost_limit)
    assert len(unique_rows(table)) == len(table)
    assert is_valid(of(tile), table).all()


def test_large_tile_is_drawn_uniformly_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    tile = Tile(72, 3, 8)
    rng = np.random.default_rng(0)
    monkeypatch.setattr(sampling, "TABLE_LIMIT", 0)
    rows = draw_tile(tile, 60_000, rng)
    assert is_valid(of(tile), rows).all()
    count = tile_count(72, 3, 8)
    _, frequency = np.unique(rows, axis=0, return_counts=True)
    assert len(frequency) == count
    expected = 60_000 / count
    # Chi-square with count - 1 degrees of freedom: mean count - 1, deviation sqrt(2 (count - 1)).
    statistic = float(((frequency - expected) ** 2 / expected).sum())
    assert statistic < count + 5 * np.sqrt(2 * count)


def test_huge_extent_needs_no_table() -> None:
    tile = Tile(2**24 * 3**8, 6, 64)
    assert tile_count(tile.extent, tile.parts, tile.innermost_limit) > sampling.TABLE_LIMIT
    assert is_valid(of(tile), draw_tile(tile, 500, np.random.default_rng(1))).all()


def test_space_size_is_exact_beyond_64_bits() -> None:
    sketch = of(*(Tile(2**12, 4, 4096) for _ in range(10)))
    assert space_size(sketch) == 455**10
    assert space_size(of()) == 1
    assert sample(of(), 3, np.random.default_rng(0)).shape == (3, 0)


def test_enumerate_all(undescribed: Sketch) -> None:
    rows = enumerate_all(undescribed)
    assert len(rows) == space_size(undescribed) == 28 * 2 * 4
    assert len(unique_rows(rows)) == len(rows)
    assert is_valid(undescribed, rows).all()
    with pytest.raises(ValueError, match="more than 10"):
        enumerate_all(undescribed, 10)
    assert enumerate_all(of()).shape == (1, 0)


@given(st.integers(0, 2**32 - 1), tiles, tiles)
@examples(40)
def test_mutants_and_children_are_candidates(seed: int, first: Tile, second: Tile) -> None:
    if any(t.parts == 1 and t.extent > t.innermost_limit for t in (first, second)):
        return
    sketch = of(first, Choice("unroll", (0, 16, 64)), second, Location("pad", (-1, 2, 5)))
    rng = np.random.default_rng(seed)
    rows = sample(sketch, 64, rng)
    mutants = mutate(sketch, rows, rng)
    assert is_valid(sketch, mutants).all()
    # One decision at most is changed.
    changed = decision_ids(sketch, np.concatenate([rows, mutants]))
    assert ((changed[:64] != changed[64:]).sum(axis=1) <= 1).all()
    children = crossover(sketch, rows, mutants[::-1], rng)
    assert is_valid(sketch, children).all()


def test_mutation_moves_and_leaves_the_parent_alone(tiled: Sketch) -> None:
    rng = np.random.default_rng(3)
    rows = sample(tiled, 200, rng)
    before = rows.copy()
    mutants = mutate(tiled, rows, rng)
    assert (rows == before).all()
    assert (mutants != rows).any(axis=1).mean() > 0.9
    assert mutate(of(Tile(1, 4, 64)), np.ones((5, 4), dtype=np.int64), rng).tolist() == [[1] * 4] * 5


def test_is_valid_refuses() -> None:
    sketch = of(Tile(8, 2, 4), Choice("unroll", (0, 16)))
    rows = np.array([[2, 4, 0], [1, 8, 0], [2, 2, 0], [8, 1, 2], [-2, -4, 0]])
    assert is_valid(sketch, rows).tolist() == [True, False, False, False, False]
    with pytest.raises(ValueError, match="3 columns"):
        is_valid(sketch, rows[:, :2])


def test_unique_rows_keeps_the_first_and_keys_match() -> None:
    rows = np.array([[2, 4], [4, 2], [2, 4]])
    assert unique_rows(rows).tolist() == [0, 1]
    keys = row_keys(rows)
    assert keys[0] == keys[2] != keys[1]


def test_log_coordinates() -> None:
    sketch = of(Tile(8, 2, 8), Choice("unroll", (0, 63)), Location("pad", (-1, 4)))
    assert log_coordinates(sketch, np.array([[2, 4, 1, 1]])).tolist() == [[1.0, 2.0, 6.0, 4.0]]
