"""Variants of a sketch whose blocks can be computed at different places. Each variant has its own description."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.sketch import Location, Sketch
from policies.arrays import Matrix

Rows = NDArray[np.intp]


def by_variant(sketch: Sketch, matrix: Matrix) -> Iterator[tuple[slice | Rows, Sketch]]:
    """Yield the rows of each variant, and the sketch with this variant as its only description. Without variants, yield
    all rows and the sketch itself."""
    if not len(matrix):
        return
    if not sketch.variants:
        yield slice(0, len(matrix)), sketch
        return
    chosen = chosen_variants(sketch, matrix)
    order = np.argsort(chosen, kind="stable")
    numbers, starts = np.unique(chosen[order], return_index=True)
    for number, rows in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
        yield rows, variant(sketch, number)


def chosen_variants(sketch: Sketch, matrix: Matrix) -> Rows:
    """Index of the variant that describes each candidate, shape ``(n,)``; see :attr:`Sketch.variants`."""
    number = np.zeros(len(matrix), dtype=np.intp)
    for decision, column in zip(sketch.decisions, sketch.offsets, strict=True):
        if isinstance(decision, Location):
            number = number * len(decision.locations) + matrix[:, column]
    return np.array(sketch.variant_of, dtype=np.intp)[number]


def with_few_places(sketch: Sketch, matrix: Matrix, most: int, rng: np.random.Generator) -> Matrix:
    """Set the places of each candidate's blocks to those of one of the first ``most`` candidates, drawn at random.
    Return ``matrix`` unchanged if the sketch has no variants, or if there are at most ``most`` candidates."""
    if not sketch.variants or len(matrix) <= most:
        return matrix
    columns = [at for each, at in zip(sketch.decisions, sketch.offsets, strict=True) if isinstance(each, Location)]
    placed = matrix.copy()
    placed[:, columns] = matrix[rng.integers(most, size=len(matrix))][:, columns]
    return placed


def of_few_variants(sketch: Sketch, matrix: Matrix, most: int) -> Matrix:
    """Return the candidates of the ``most`` variants with the most candidates, in their order; all candidates if the
    sketch has no variants."""
    if not sketch.variants or not len(matrix):
        return matrix
    _, variants, counts = np.unique(chosen_variants(sketch, matrix), return_inverse=True, return_counts=True)
    return matrix[np.isin(variants, np.argsort(-counts, kind="stable")[:most])]


@lru_cache(maxsize=8192)
def variant(sketch: Sketch, number: int) -> Sketch:
    """The sketch with one of its variants as its only description."""
    return replace(sketch, statements=sketch.variants[number], variants=(), variant_of=())
