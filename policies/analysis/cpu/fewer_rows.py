"""Time of a schedule over all numbers of rows that a network computes with it.

A network with dynamic dimensions is made of tiles of rows: one schedule is applied to several numbers of rows
(:attr:`fleet_tune.base.sketch.Sketch.fewer_rows`). A schedule that gives each thread a part of the rows is as good as
any for many rows, but leaves threads idle for few rows. For a kernel that runs alone, nothing else was found to matter
(see docs/lab/kernels.md): the number of threads that its loops keep busy predicts the time within 3%, the whole model
within 20%.
"""

from __future__ import annotations

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Decision, Sketch, Tile
from policies.analysis import symbols
from policies.analysis.cpu.fitted import FITTED
from policies.analysis.cpu.producers_consumers import count_partial_sums, fusible, place
from policies.analysis.cpu.program import Program
from policies.analysis.quantities import parallel_extent
from policies.arrays import Floats, Matrix
from policies.space.sampling import row_keys

CONSIDERED = 16
"""Number of records, the best for the most rows, from which the best for all numbers of rows is chosen."""


def time_over_rows(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, busy: Floats | None = None) -> Floats:
    """Return the time over all numbers of rows, ``(n,)``, divided by the time with threads that are as busy for each
    number of rows as for the most rows. It is 1 for fixed shapes, for a device that is not a CPU, and if other numbers
    of rows are not described. ``busy``: the share of the threads that is busy for the most rows, ``(n,)``, if known."""
    if not sketch.fewer_rows or device.kind != "cpu":
        return np.ones(len(matrix))
    busy = _busy_share(sketch, matrix, device) if busy is None else busy.astype(np.float64)
    time, work = 1.0 / busy, 1.0
    for other in sketch.fewer_rows:
        time += other.work / _busy_share(other.sketch, applied(sketch, other.sketch, matrix), device)
        work += other.work
    return busy * time / work


class TimesOverRows:
    """A cache of :func:`time_over_rows` for the candidates of one sketch: each is computed once."""

    def __init__(self, sketch: Sketch, device: DeviceAbstraction) -> None:
        self._sketch = sketch
        self._device = device
        self._known: dict[bytes, float] = {}

    def of(self, matrix: Matrix) -> Floats:
        """Return the times over rows, ``(n,)``, of valid decisions ``(n, d)``."""
        keys = row_keys(matrix)
        fresh = {key: at for at, key in enumerate(keys) if key not in self._known}
        if fresh:
            times = time_over_rows(self._sketch, matrix[list(fresh.values())], self._device)
            self._known.update(zip(fresh, times.tolist(), strict=True))
        return np.array([self._known[key] for key in keys], dtype=np.float64)


def applied(sketch: Sketch, other: Sketch, matrix: Matrix) -> Matrix:
    """Return the decisions, ``(n, d)``, of a schedule after it is applied to a kernel of other extents
    (:func:`devices.sketches.dynamic.applied_schedule.fitting_factors`)."""
    parts = [
        _tiled(mine, theirs, matrix[:, at : at + mine.width])
        for mine, theirs, at in zip(sketch.decisions, other.decisions, sketch.offsets, strict=True)
    ]
    return np.concatenate(parts, axis=1) if parts else matrix


def _busy_share(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Floats:
    """Return the share of the threads that the main statement keeps busy, ``(n,)``, in (0, 1]."""
    program = Program(sketch, matrix, device, np.float32, FITTED)
    partial_sums = count_partial_sums(program)
    beside = [place(program, other, partial_sums) for other in sketch.statements[1:]]
    parallel = parallel_extent(program.main, fusible(program, beside))
    return symbols.utilisation(parallel, device.cores).astype(np.float64)


def _tiled(mine: Decision, theirs: Decision, factors: Matrix) -> Matrix:
    if not isinstance(mine, Tile) or not isinstance(theirs, Tile) or mine.extent == theirs.extent:
        return factors
    divisors = np.array([each for each in range(1, theirs.extent + 1) if theirs.extent % each == 0])
    result = np.empty_like(factors)
    before = factors[:, -1].copy()
    inside = np.where(divisors <= before[:, None], divisors, 1).max(axis=1)
    result[:, -1] = inside
    for part in range(mine.parts - 2, 0, -1):
        before *= factors[:, part]
        goal = np.minimum(before, theirs.extent)[:, None]
        ratio = np.maximum(divisors / goal, goal / divisors)
        chosen = divisors[np.where(divisors % inside[:, None] == 0, ratio, np.inf).argmin(axis=1)]
        result[:, part] = chosen // inside
        inside = chosen
    result[:, 0] = theirs.extent // inside
    return result
