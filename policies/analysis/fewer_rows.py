"""The time of a schedule over all numbers of rows that a network computes by it.

A network with dynamic dimensions is made of tiles of rows: one schedule, applied to several numbers of rows
(:attr:`fleet_tune.base.sketch.Sketch.fewer_rows`). A schedule that gives each thread a part of the rows is as good as
any for many of them, and leaves threads idle for few. Its closed form says so before anything is built.
"""

from __future__ import annotations

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Decision, Sketch, Tile
from policies.analysis.analyzer import latency_secs
from policies.arrays import Floats, Matrix


def log_share_of_fewer_rows(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Floats:
    """Return the logarithm of the predicted time of all tiles, divided by that of the largest ones, ``(n,)``; 0 where
    there are no others."""
    if not sketch.fewer_rows:
        return np.zeros(len(matrix))
    largest = latency_secs(sketch, matrix, device).astype(np.float64)
    smaller = np.zeros(len(matrix))
    for other in sketch.fewer_rows:
        smaller += other.calls * latency_secs(other.sketch, applied(sketch, other.sketch, matrix), device)
    return np.log1p(smaller / largest)


def applied(sketch: Sketch, other: Sketch, matrix: Matrix) -> Matrix:
    """Return the decisions, ``(n, d)``, that a schedule's have become where it is applied to a kernel of other extents,
    as TVM's ``SamplePerfectTile`` does: from the innermost part on, one that does not divide what is left becomes all
    of it."""
    parts = [
        _tiled(mine, theirs, matrix[:, at : at + mine.width])
        for mine, theirs, at in zip(sketch.decisions, other.decisions, sketch.offsets, strict=True)
    ]
    return np.concatenate(parts, axis=1) if parts else matrix


def _tiled(mine: Decision, theirs: Decision, factors: Matrix) -> Matrix:
    if not isinstance(mine, Tile) or not isinstance(theirs, Tile) or mine.extent == theirs.extent:
        return factors
    left = np.full(len(factors), theirs.extent, dtype=factors.dtype)
    result = np.empty_like(factors)
    for part in range(mine.parts - 1, 0, -1):
        result[:, part] = np.where(left % factors[:, part] == 0, factors[:, part], left)
        left //= result[:, part]
    result[:, 0] = left
    return result
