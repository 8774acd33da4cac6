"""What a statement costs on a CPU that only moves data across the lines it writes: a transpose.

Lanes that lie in other lines each are loaded one by one and put together; nothing is computed beside. So neither ports
nor latencies of arithmetic say what is fast, but how much is done for each element: loops, lines, stores. ``n``
candidates, every vector ``(n,)``.
"""

from __future__ import annotations

import numpy as np

from fleet_tune.base.sketch import Access, Statement
from policies.analysis.cpu.constants import (
    MOVE_CYCLES,
    MOVE_ITERATION_CYCLES,
    MOVE_LINE_CYCLES,
    MOVE_STORE_CYCLES,
    PAGE_BYTES,
    USABLE_CACHE,
)
from policies.analysis.cpu.parts import LINE_BYTES, parallel_depth
from policies.analysis.cpu.program import Program
from policies.analysis.quantities import (
    contiguous_run,
    in_digits,
    lines_per_set,
    stride_along,
    unit_stride,
    vector_extent,
)
from policies.arrays import Floats

_FLOAT_BYTES = 4
"""Of the elements that the lanes of a device are counted in."""


def moves_across(statement: Statement) -> bool:
    """Whether a statement does nothing but copy, and neighbours of what it writes are in different rows of what it
    reads. Of one that reads every second element, say, they are in the same row."""
    if statement.flop_per_point or any(axis.reduction for axis in statement.axes):
        return False
    written = [access for access in statement.accesses if access.write]
    along = [j for j in range(len(statement.axes)) if any(unit_stride(statement, access, j) for access in written)]
    return any(
        unit_stride(statement, access, axis) is False and stride_along(statement, access, axis) is None
        for axis in along
        for access in statement.accesses
        if not access.write
    )


def cycles_of_moves(program: Program, parallel: Floats) -> Floats:
    """Cycles of a core for each element, where ``parallel`` iterations (n,) may run in parallel.

    Beside those of the element itself: its share of an iteration of the parallel loop, of the lines that such an
    iteration reads, and of the stores of a vector, of which one of an odd length takes several.
    """
    main = program.main
    cycles = MOVE_CYCLES + MOVE_ITERATION_CYCLES * parallel / main.points()
    for access, elements in program.accesses():
        if access.write:
            cycles += MOVE_STORE_CYCLES * _stores(vector_extent(main), program.device.lanes, access)
        elif access.scope == "global":
            cycles += MOVE_LINE_CYCLES * _lines_read(program, access, elements)
    return cycles.astype(main.extents.dtype, copy=False)


def share_beyond(resident: Floats, capacity: float) -> Floats:
    """Share of what is moved that a cache of ``capacity`` bytes does not keep from one run to the next, ``(n,)``;
    ``resident`` (n,): bytes of the whole statement."""
    return np.maximum(1.0 - USABLE_CACHE * capacity / np.maximum(resident, 1.0), 0.0)


def _stores(vector: Floats, lanes: int, access: Access) -> Floats:
    """Stores for each element of a vector: whole registers, and what is left in parts of powers of two."""
    register = max(lanes * _FLOAT_BYTES // access.element_bytes, 1)
    whole, rest = np.divmod(vector.astype(np.int64), register)
    return np.asarray((whole + np.bitwise_count(rest)) / vector)


def _lines_read(program: Program, access: Access, elements: Floats) -> Floats:
    """Lines that are fetched for each element within an iteration of the parallel loop.

    A line is fetched once for all of its elements that are read there, if the first-level cache can hold the lines:
    rows a power of two apart are in few of its sets. Else once for each element.
    """
    main, device = program.main, program.device
    depth = parallel_depth(main)
    inside = main.inside(depth)
    run = contiguous_run(main, access, depth, inside)
    read = elements[depth] / main.points(depth)  # an element that is read again is in a register
    lines = elements[depth] / run * np.ceil(run * (access.element_bytes / LINE_BYTES))
    held = lines * LINE_BYTES
    in_sets = lines_per_set(program.statement, access, in_digits(program.statement, inside), PAGE_BYTES, LINE_BYTES)
    if in_sets is not None and not access.packed:
        held = np.maximum(held, in_sets * PAGE_BYTES)
    used = np.minimum(run, LINE_BYTES / access.element_bytes)
    lost = held > USABLE_CACHE * device.l1_bytes
    return np.asarray(np.where(lost, read, read / used), run.dtype)
