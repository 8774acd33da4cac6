"""Cost on a CPU of a statement that only moves data, across the cache lines that it writes: a transpose.

Lanes that lie in different lines are loaded one by one and put together, and nothing is computed. So the time does not
follow from ports and latencies of arithmetic, but from the work for each element: loops, lines, stores. ``n``
candidates; every vector has the shape ``(n,)``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fleet_tune.base.sketch import Access, Statement
from policies.analysis.cpu.constants import CpuConstants
from policies.analysis.cpu.model import CpuModel
from policies.analysis.cpu.parts import LINE_BYTES, InnerLoop, parallel_depth
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
"""Size of the elements in which the lanes of a device are counted (float32)."""


def moves_across(statement: Statement) -> bool:
    """Return true if a statement only copies, and neighbours in its output come from different rows of its input. A
    strided copy, of every second element say, reads one row and does not count."""
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
    """Cycles of a core for each element, ``(n,)``. ``parallel`` (n,): iterations that may run in parallel.

    They are the cycles of the element itself and its share of an iteration of the parallel loop, of the lines that this
    iteration reads, and of the stores of a vector. A vector whose length is not a power of two takes more stores.
    """
    constants = program.constants
    main = program.main
    cycles = constants.moves.cycles + constants.moves.iteration_cycles * parallel / main.points()
    for access, elements in program.accesses():
        if access.write:
            cycles += constants.moves.store_cycles * _stores(vector_extent(main), program.device.lanes, access)
        elif access.scope == "global":
            cycles += constants.moves.line_cycles * _lines_read(program, access, elements)
    return cycles.astype(main.extents.dtype, copy=False)


def share_beyond(resident: Floats, capacity: float, constants: CpuConstants) -> Floats:
    """Share of the moved data that a cache of ``capacity`` bytes does not keep from one run to the next, ``(n,)``;
    ``resident`` (n,): bytes of the whole statement."""
    return np.maximum(1.0 - constants.usable_cache * capacity / np.maximum(resident, 1.0), 0.0)


def _stores(vector: Floats, lanes: int, access: Access) -> Floats:
    """Stores per element of a vector: one for each whole register, and one for each part of the rest, whose lengths are
    powers of two."""
    register = max(lanes * _FLOAT_BYTES // access.element_bytes, 1)
    whole, rest = np.divmod(vector.astype(np.int64), register)
    return np.asarray((whole + np.bitwise_count(rest)) / vector)


def _lines_read(program: Program, access: Access, elements: Floats) -> Floats:
    """Lines that are fetched for each element within an iteration of the parallel loop.

    If the L1 cache can hold the lines, a line is fetched once for all of its elements that are read; else once for each
    element. Rows a power of two apart fall into few sets, which hold fewer lines.
    """
    constants = program.constants
    main, device = program.main, program.device
    depth = parallel_depth(main)
    inside = main.inside(depth)
    run = contiguous_run(main, access, depth, inside)
    read = elements[depth] / main.points(depth)  # an element that is read again is in a register
    lines = elements[depth] / run * np.ceil(run * (access.element_bytes / LINE_BYTES))
    held = lines * LINE_BYTES
    in_sets = lines_per_set(
        program.statement, access, in_digits(program.statement, inside), constants.page_bytes, LINE_BYTES
    )
    if in_sets is not None and not access.packed:
        held = np.maximum(held, in_sets * constants.page_bytes)
    used = np.minimum(run, LINE_BYTES / access.element_bytes)
    lost = held > constants.usable_cache * device.l1_bytes
    return np.asarray(np.where(lost, read, read / used), run.dtype)


class MovesModel(CpuModel):
    """The model of a statement that only moves data, evaluated for candidates.

    It was fitted on repeated runs, whose data stay in the caches as far as they fit.
    """

    def _inner_loop(self, scheduled: InnerLoop) -> InnerLoop:
        per_operation = scheduled.vector / scheduled.vectors
        return replace(scheduled, cycles=cycles_of_moves(self._program, self._parallel) * per_operation)

    def _main_secs(self) -> Floats:
        device, constants, whole = self._device, self._program.constants, self._traffic.whole
        beyond_l2 = self._l2_secs * share_beyond(whole, device.l2_bytes, constants)
        beyond_all = self._memory_secs * share_beyond(whole, device.l3_bytes or device.l2_bytes, constants)
        return self._compute_secs + np.maximum(beyond_l2, beyond_all)

    def _launch_secs(self) -> float:
        return self._program.constants.moves.launch_secs
