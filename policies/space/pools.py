"""Pools: the candidates of a sketch that a recorded dataset has."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.sketch import Sketch
from policies.arrays import Matrix
from policies.space.sampling import decision_ids, is_valid, log_coordinates, row_keys, unique_rows

NEIGHBOURS = 16
"""Rows of a pool that count as the neighbours of a row."""
_CHUNK = 256

T = TypeVar("T")


class Pool:
    """The candidates of one sketch that a dataset has. ``matrix`` (n, d): their distinct decision vectors, read-only.

    A pool is made once and shared by many searches, so it keeps results that were computed for its rows. Raise
    ValueError if rows repeat or are not candidates of the sketch.
    """

    def __init__(self, sketch: Sketch, matrix: Matrix) -> None:
        rows = np.array(matrix, dtype=np.int64).reshape(len(matrix), sketch.width)
        if not is_valid(sketch, rows).all():
            raise ValueError(f"a pool of sketch {sketch.index} has rows that are no candidates of it")
        if len(unique_rows(rows)) != len(rows):
            raise ValueError(f"a pool of sketch {sketch.index} repeats candidates")
        rows.setflags(write=False)
        self.sketch = sketch
        self.matrix = rows
        self._computed: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.matrix)

    @cached_property
    def keys(self) -> tuple[bytes, ...]:
        """The key of each row (see :func:`policies.space.sampling.row_keys`)."""
        return tuple(row_keys(self.matrix))

    @cached_property
    def row_of(self) -> dict[bytes, int]:
        """The row of each key."""
        return {key: row for row, key in enumerate(self.keys)}

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of ``compute``, which is called once for each ``key``. All searches that share the pool
        share the result."""
        if key not in self._computed:
            self._computed[key] = compute()
        result: T = self._computed[key]
        return result

    @cached_property
    def neighbours(self) -> NDArray[np.int64]:
        """The rows nearest to each row, shape ``(n, min(NEIGHBOURS, n - 1))``, ordered by the number of whole decisions
        that differ, then by the distance in log coordinates."""
        count = min(NEIGHBOURS, len(self) - 1)
        if count < 1:
            return np.empty((len(self), 0), dtype=np.int64)
        ids = decision_ids(self.sketch, self.matrix)
        points = log_coordinates(self.sketch, self.matrix)
        squares = np.square(points).sum(axis=1)
        farthest = 1.0 + 4.0 * float(squares.max(initial=0.0))
        nearest = np.empty((len(self), count), dtype=np.int64)
        for start in range(0, len(self), _CHUNK):
            rows = slice(start, min(start + _CHUNK, len(self)))
            differing = np.zeros((rows.stop - start, len(self)))
            for column in range(ids.shape[1]):
                differing += ids[rows, column, None] != ids[None, :, column]
            squared = squares[rows, None] + squares[None, :] - 2.0 * points[rows] @ points.T
            distance = differing + np.maximum(squared, 0.0) / farthest
            distance[np.arange(rows.stop - start), np.arange(start, rows.stop)] = np.inf
            nearest[rows] = np.argsort(distance, axis=1, kind="stable")[:, :count]
        return nearest
