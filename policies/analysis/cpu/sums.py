"""Cost of sums beside the main statement on a CPU: norms and softmax consist of little else.

Additions into one sum wait for each other; the compiler does not reorder them. The order of the loops determines how
many sums run beside each other, in the lanes of one vector and in several vectors: the loops over the sums stand inside
the reduction, or around it. ``n`` candidates; every vector has the shape ``(n,)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.sketch import Statement
from policies.analysis.cpu.constants import CpuConstants
from policies.analysis.nests import Nest, product_of, shape_of
from policies.arrays import Floats


@dataclass(frozen=True)
class SumLoops:
    """The innermost loops of a sum."""

    row: Floats
    """Iterations of the innermost spatial loops, as far as they run along the result's rows."""
    steps: Floats
    """Iterations of the reduction loops inside all spatial loops, or 1."""
    reduced: Floats
    """Iterations of all reduction loops."""


def sum_loops(loops: Nest) -> SumLoops | None:
    """The innermost loops of a nest, without loops of one iteration; None for a statement that reduces nothing."""
    if not any(loops.reduction):
        return None
    row, steps = loops.full(1.0), loops.full(1.0)
    in_row = np.ones(loops.count, dtype=bool)  # whether a loop further out may be part of the row
    spatial = np.zeros(loops.count, dtype=bool)  # whether there is a spatial loop inside
    for at in reversed(range(loops.depth)):
        extent = loops.extents[at]
        more = extent > 1
        if loops.reduction[at]:
            steps = np.where(spatial, steps, steps * extent)
            in_row &= ~(more & spatial)
            continue
        if loops.kinds[at] in ("serial", "vectorize") and loops.along_rows[at]:
            row = np.where(in_row, row * extent, row)
        else:
            in_row &= ~more
        spatial |= more
    return SumLoops(row, steps, loops.reduced_points(0))


def cycles_of_sums(sums: SumLoops, unrolled: Floats, lanes: int, constants: CpuConstants) -> Floats:
    """Cycles for each point of a sum, ``(n,)``. The schedule unrolls loops of up to ``unrolled`` iterations.

    If the reduction is around the row, each step adds a row of vectors to the sums. If the reduction is inside the row,
    the compiler does the same, provided that it unrolls the whole reduction and the row is no shorter than
    ``shortest_row``; else each sum is a chain of its own. Other chains run beside it as far as the processor looks
    ahead.
    """
    vectors = np.ceil(sums.row * (1.0 / lanes))
    chains = np.maximum(1.0, constants.window_operations / (sums.reduced * vectors))
    in_rows = (
        np.maximum(vectors * (constants.sum_loads / constants.load_ports), constants.fma_latency / chains) / sums.row
    )
    chains = np.maximum(1.0, constants.window_operations / sums.steps)
    chain = np.maximum(constants.fma_latency / chains, constants.sum_loads / constants.load_ports)
    short = (sums.steps <= np.maximum(unrolled, constants.fully_unrolled_steps)) & (sums.row >= constants.shortest_row)
    return np.where((sums.steps > 1.0) & ~short, chain, in_rows)


def hoistable(reduced: Floats, unrolled: Floats, constants: CpuConstants) -> NDArray[np.bool_]:
    """True where the compiler unrolls the whole reduction, and so can hoist the sum out of loops that repeat it,
    (n,)."""
    return np.asarray(reduced <= np.maximum(unrolled, constants.hoisted_steps))


def hoisted(loops: Nest, unrolled: Floats, constants: CpuConstants) -> Floats:
    """Points of a sum's loops, divided by the points that are computed, ``(n,)``. The compiler hoists the sum out of
    loops that no access depends on (:func:`hoistable`)."""
    repeats = product_of([loops.extents[at] for at in range(loops.depth) if loops.repeats[at]], loops.full(1.0))
    return np.where(hoistable(loops.reduced_points(0), unrolled, constants), repeats, 1.0)


def has_partial_sums(statement: Statement) -> bool:
    """Return true if a decision sets the extent of an axis (the partial sums of an rfactor)."""
    return any(shape_of(statement).bounded)
