"""Random, mutated and crossed decision matrices of a sketch.

A decision matrix has the shape ``(n, d)``, dtype int64, one candidate a row, columns as laid out in
:mod:`fleet_tune.base.sketch`. Nothing here loops over candidates in Python.

A tile is drawn uniformly from all ordered factorisations of its extent whose innermost factor respects the limit. If
there are at most ``TABLE_LIMIT`` of them, it is drawn from a table; else the exponents of its primes are drawn one part
after the other, with the exact conditional probabilities.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.sketch import Choice, Decision, Location, Sketch, Tile
from policies.arrays import Matrix

TABLE_LIMIT = 50_000
"""Largest number of factorisations of one tile that is kept as a table."""


@lru_cache(maxsize=4096)
def prime_factors(extent: int) -> tuple[int, ...]:
    """Prime factors of ``extent`` with multiplicity, ascending; empty for 1."""
    if extent < 1:
        raise ValueError(f"an extent must be at least 1, got {extent}")
    factors, rest, prime = [], extent, 2
    while prime * prime <= rest:
        while rest % prime == 0:
            factors.append(prime)
            rest //= prime
        prime += 1
    if rest > 1:
        factors.append(rest)
    return tuple(factors)


@lru_cache(maxsize=4096)
def _divisors(extent: int) -> tuple[int, ...]:
    divisors = {1}
    for prime in prime_factors(extent):
        divisors |= {divisor * prime for divisor in divisors}
    return tuple(sorted(divisors))


def _unlimited_count(extent: int, parts: int) -> int:
    """Number of ordered factorisations of ``extent`` into ``parts`` factors (stars and bars for each prime)."""
    if parts == 0:
        return int(extent == 1)
    factors = prime_factors(extent)
    return prod(comb(factors.count(p) + parts - 1, parts - 1) for p in set(factors))


@lru_cache(maxsize=4096)
def tile_count(extent: int, parts: int, innermost_limit: int) -> int:
    """Exact number of the ordered factorisations of ``extent`` with the last factor at most ``innermost_limit``."""
    return sum(_unlimited_count(extent // d, parts - 1) for d in _divisors(extent) if d <= innermost_limit)


@lru_cache(maxsize=4096)
def tile_table(extent: int, parts: int, innermost_limit: int) -> Matrix:
    """All factorisations, shape ``(tile_count, parts)``, in lexicographic order of the parts from the innermost out.

    The table is cached and read-only. Build it only if :func:`tile_count` is at most ``TABLE_LIMIT``.
    """

    def outer(rest: int, left: int) -> Matrix:
        if left == 0:
            return np.empty((int(rest == 1), 0), dtype=np.int64)
        if left == 1:
            return np.array([[rest]], dtype=np.int64)
        blocks = []
        for d in _divisors(rest):
            head = outer(rest // d, left - 1)
            blocks.append(np.concatenate([head, np.full((len(head), 1), d, dtype=np.int64)], axis=1))
        return np.concatenate(blocks)

    blocks = []
    for d in _divisors(extent):
        if d <= innermost_limit:
            head = outer(extent // d, parts - 1)
            blocks.append(np.concatenate([head, np.full((len(head), 1), d, dtype=np.int64)], axis=1))
    table = np.concatenate(blocks) if blocks else np.empty((0, parts), dtype=np.int64)
    table.setflags(write=False)
    return table


def _check_tile(tile: Tile) -> None:
    if tile_count(tile.extent, tile.parts, tile.innermost_limit) == 0:
        raise ValueError(f"no factorisation satisfies {tile}")


def _draw_exponents(total: NDArray[np.int64], parts: int, rng: np.random.Generator) -> Matrix:
    """Uniform compositions of ``total`` (shape ``(n,)``) into ``parts`` non-negative exponents, shape (n, parts)."""
    drawn = np.zeros((len(total), parts), dtype=np.int64)
    rest = total.copy()
    highest = int(total.max(initial=0))
    for part in range(parts - 1):
        left = parts - part - 1  # parts still to fill after this one
        cumulative = np.ones((highest + 1, highest + 1))
        for e in range(highest + 1):
            weights = np.array([comb(e - a + left - 1, left - 1) for a in range(e + 1)], dtype=np.float64)
            cumulative[e, : e + 1] = np.cumsum(weights) / weights.sum()
        drawn[:, part] = (rng.random(len(rest))[:, None] >= cumulative[rest]).sum(axis=1)
        rest = rest - drawn[:, part]
    drawn[:, parts - 1] = rest
    return drawn


def _draw_large_tile(tile: Tile, count: int, rng: np.random.Generator) -> Matrix:
    """Uniform factorisations without a table: the innermost factor first, then the exponents of each prime."""
    divisors = [d for d in _divisors(tile.extent) if d <= tile.innermost_limit]
    counts = [_unlimited_count(tile.extent // d, tile.parts - 1) for d in divisors]
    total = sum(counts)
    innermost = np.array(divisors, dtype=np.int64)[
        rng.choice(len(divisors), size=count, p=np.array([c / total for c in counts]))
    ]
    rows = np.ones((count, tile.parts), dtype=np.int64)
    rows[:, -1] = innermost
    rest = tile.extent // innermost
    for prime in sorted(set(prime_factors(tile.extent))):
        exponent = np.zeros(count, dtype=np.int64)
        power = prime
        while tile.extent % power == 0:
            exponent += rest % power == 0
            power *= prime
        rows[:, :-1] *= prime ** _draw_exponents(exponent, tile.parts - 1, rng)
    return rows


def draw_tile(tile: Tile, count: int, rng: np.random.Generator) -> Matrix:
    """Draw ``count`` uniform factorisations of a tile, shape ``(count, parts)``. Raise ValueError if none exists."""
    _check_tile(tile)
    size = tile_count(tile.extent, tile.parts, tile.innermost_limit)
    if size > TABLE_LIMIT:
        return _draw_large_tile(tile, count, rng)
    return tile_table(tile.extent, tile.parts, tile.innermost_limit)[rng.integers(size, size=count)]


def options(decision: Decision) -> int:
    """Number of values a decision can take."""
    if isinstance(decision, Tile):
        return tile_count(decision.extent, decision.parts, decision.innermost_limit)
    if isinstance(decision, Choice):
        return len(decision.values)
    return len(decision.locations)


def space_size(sketch: Sketch) -> int:
    """Exact number of candidates of a sketch (a Python integer: it can exceed 64 bits)."""
    return prod(options(decision) for decision in sketch.decisions)


def _draw(decision: Decision, count: int, rng: np.random.Generator) -> Matrix:
    if isinstance(decision, Tile):
        return draw_tile(decision, count, rng)
    return rng.integers(options(decision), size=(count, 1))


def sample(sketch: Sketch, count: int, rng: np.random.Generator) -> Matrix:
    """``count`` candidates drawn uniformly and independently, shape ``(count, d)``; repeats are possible."""
    if not sketch.decisions:
        return np.empty((count, 0), dtype=np.int64)
    return np.concatenate([_draw(decision, count, rng) for decision in sketch.decisions], axis=1)


def enumerate_all(sketch: Sketch, limit: int = 100_000) -> Matrix:
    """Return every candidate of a sketch, shape ``(space_size, d)``. Raise ValueError if there are more than
    ``limit``."""
    size = space_size(sketch)
    if size > limit:
        raise ValueError(f"the sketch has {size} candidates, more than {limit}")
    rows: Matrix = np.empty((1, 0), dtype=np.int64)
    for decision in sketch.decisions:
        values = (
            tile_table(decision.extent, decision.parts, decision.innermost_limit)
            if isinstance(decision, Tile)
            else np.arange(options(decision), dtype=np.int64)[:, None]
        )
        rows = np.concatenate([np.repeat(rows, len(values), axis=0), np.tile(values, (len(rows), 1))], axis=1)
    return rows


def unique_rows(matrix: Matrix) -> NDArray[np.intp]:
    """Indices of the first occurrence of every distinct row, ascending."""
    if matrix.shape[1] == 0:
        return np.arange(min(1, len(matrix)))
    rows = np.ascontiguousarray(matrix).view(np.dtype((np.void, matrix.dtype.itemsize * matrix.shape[1]))).ravel()
    return np.sort(np.unique(rows, return_index=True)[1])


def row_keys(matrix: Matrix) -> list[bytes]:
    """A hashable key of every row; equal rows have equal keys."""
    return [row.tobytes() for row in np.ascontiguousarray(matrix, dtype=np.int64)]


def is_valid(sketch: Sketch, matrix: Matrix) -> NDArray[np.bool_]:
    """True for rows that are candidates of the sketch, shape ``(n,)``."""
    if matrix.ndim != 2 or matrix.shape[1] != sketch.width:
        raise ValueError(f"a decision matrix of this sketch has {sketch.width} columns, got shape {matrix.shape}")
    valid = np.ones(len(matrix), dtype=bool)
    for decision, start in zip(sketch.decisions, sketch.offsets, strict=True):
        block = matrix[:, start : start + decision.width]
        if isinstance(decision, Tile):
            valid &= (block >= 1).all(axis=1) & (block.prod(axis=1) == decision.extent)
            valid &= block[:, -1] <= decision.innermost_limit
        else:
            valid &= (block[:, 0] >= 0) & (block[:, 0] < options(decision))
    return valid


def _move_prime(tile: Tile, block: Matrix, rng: np.random.Generator) -> Matrix:
    """Move one prime factor of every row from one part to another. A row whose innermost part then exceeds its limit is
    drawn anew."""
    count = len(block)
    primes = np.array(prime_factors(tile.extent), dtype=np.int64)[
        rng.integers(len(prime_factors(tile.extent)), size=count)
    ]
    source = rng.integers(tile.parts, size=count)
    target = (source + 1 + rng.integers(tile.parts - 1, size=count)) % tile.parts
    rows = np.arange(count)
    moved = block.copy()
    fits = moved[rows, source] % primes == 0
    # If the drawn part does not have the prime, the first part that has it gives it; there always is one.
    divisible = moved % primes[:, None] == 0
    source = np.where(fits, source, divisible.argmax(axis=1))
    target = np.where(source == target, (source + 1) % tile.parts, target)
    moved[rows, source] //= primes
    moved[rows, target] *= primes
    bad = moved[:, -1] > tile.innermost_limit
    if bad.any():
        moved[bad] = draw_tile(tile, int(bad.sum()), rng)
    return moved


def mutate(sketch: Sketch, matrix: Matrix, rng: np.random.Generator, redraw_share: float = 0.3) -> Matrix:
    """A copy with one decision of every row changed at random.

    Decisions are picked in proportion to the logarithm of their number of options. A tile moves one prime factor
    between two parts, or, with probability ``redraw_share``, is drawn anew; a choice or location is drawn anew.
    """
    weights = np.log2([float(min(options(decision), 2**60)) for decision in sketch.decisions])
    changed = matrix.copy()
    if len(matrix) == 0 or weights.sum() == 0:
        return changed
    picked = rng.choice(len(weights), size=len(matrix), p=weights / weights.sum())
    for index, (decision, start) in enumerate(zip(sketch.decisions, sketch.offsets, strict=True)):
        rows = np.flatnonzero(picked == index)
        if len(rows) == 0:
            continue
        block = changed[rows, start : start + decision.width]
        if isinstance(decision, Tile):
            fresh = rng.random(len(rows)) < redraw_share
            new = block.copy()
            new[fresh] = draw_tile(decision, int(fresh.sum()), rng)
            new[~fresh] = _move_prime(decision, block[~fresh], rng)
        else:
            # Shifted by 1..k-1, so that the value always changes.
            new = (block + rng.integers(1, options(decision), size=block.shape)) % options(decision)
        changed[rows, start : start + decision.width] = new
    return changed


def crossover(sketch: Sketch, first: Matrix, second: Matrix, rng: np.random.Generator) -> Matrix:
    """Children that take each whole decision from one of two parents at random; shape of ``first``."""
    child = first.copy()
    for decision, start in zip(sketch.decisions, sketch.offsets, strict=True):
        other = rng.random(len(first)) < 0.5
        child[other, start : start + decision.width] = second[other, start : start + decision.width]
    return child


def log_coordinates(sketch: Sketch, matrix: Matrix) -> NDArray[np.float64]:
    """Coordinates in which near candidates behave alike: log2 of tile factors and choice values, index of locations.

    Shape ``(n, d)``. Two candidates one moved factor of 2 apart lie at the distance sqrt(2).
    """
    coordinates = np.empty(matrix.shape, dtype=np.float64)
    for decision, start in zip(sketch.decisions, sketch.offsets, strict=True):
        block = matrix[:, start : start + decision.width]
        if isinstance(decision, Tile):
            coordinates[:, start : start + decision.width] = np.log2(block)
        elif isinstance(decision, Choice):
            values = np.log2(1.0 + np.maximum(np.array(decision.values, dtype=np.float64), 0.0))
            coordinates[:, start] = values[block[:, 0]]
        else:
            coordinates[:, start] = np.array(decision.locations, dtype=np.float64)[block[:, 0]]
    return coordinates


def decision_ids(sketch: Sketch, matrix: Matrix) -> NDArray[np.int64]:
    """One integer for the value of every whole decision, shape ``(n, number of decisions)``.

    These are the components of a candidate in AutoTVM's diversity objective (equation 3). Equal values have equal ids
    within this call only.
    """
    ids = np.zeros((len(matrix), len(sketch.decisions)), dtype=np.int64)
    for index, (decision, start) in enumerate(zip(sketch.decisions, sketch.offsets, strict=True)):
        block = matrix[:, start : start + decision.width]
        if isinstance(decision, Location | Choice):
            ids[:, index] = block[:, 0]
        else:
            # Factors are at most the extent, so positional notation to the base extent + 1 cannot collide. It may wrap
            # around 64 bits for extents beyond 2**15 with four parts; a collision then only costs a little diversity.
            for part in range(decision.width):
                ids[:, index] = ids[:, index] * (decision.extent + 1) + block[:, part]
    return ids
