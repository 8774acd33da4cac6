"""Statements beside the main one: their place, how often they are computed, and their cost.

``n`` candidates; every vector has the shape ``(n,)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fleet_tune.base.sketch import Statement
from policies.analysis import symbols as pruner
from policies.analysis.cpu.parts import ProducerConsumer, elements_of, instructions, parallel_depth
from policies.analysis.cpu.program import Program
from policies.analysis.cpu.sums import SumLoops, cycles_of_sums, has_partial_sums, hoistable, hoisted, sum_loops
from policies.analysis.nests import Nest, product_of
from policies.analysis.quantities import Ints, contiguous_run, enclosing_depth, footprint, parallel_extent
from policies.arrays import Floats


def place(program: Program, other: Statement, partial_sums: Mapping[str, Floats]) -> ProducerConsumer:
    """Place a statement beside the main one. Inside a loop it recomputes, in each iteration, the part of the shared
    buffer that the main statement touches there."""
    main = program.main
    depth = enclosing_depth(program.sketch, main, other, program.matrix)
    fixed = main.compact_depth(other.fixed_depth) if other.location_column is None else None
    alone = program.nest_of(other)
    reduced = main.full(1.0) * _reduced(alone, partial_sums)
    all_points = alone.points() / alone.reduced_points(0) * reduced
    placed = ProducerConsumer(other, alone, depth, fixed, all_points, reduced)
    if fixed == 0:
        return placed
    made = {access.buffer for access in other.accesses if access.write}
    taken = {access.buffer for access in other.accesses if not access.write}
    for access, elements in program.accesses():
        if access.buffer not in made and not (access.write and access.buffer in taken):
            continue
        if access.buffer in made:  # a producer may be repeated; each time it computes whole sums
            at = placed.depth if fixed is None else _not_repeated(program, placed, elements, fixed)
            points = main.pick(elements, np.maximum(at, 0)) * main.pick(main.outer, np.maximum(at, 0))
            points = np.maximum(points * reduced, all_points)
        else:
            points = at_place(program, elements, placed) * at_place(program, main.outer, placed)
        if fixed is None:
            points = np.where(placed.inside, points, all_points)
        return ProducerConsumer(other, alone, depth, fixed, points, reduced)
    return placed


def count_partial_sums(program: Program) -> dict[str, Floats]:
    """Partial sums (rfactor) of an element, by the buffer that holds them, each (n,)."""
    counts: dict[str, Floats] = {}
    for statement in program.sketch.statements:
        axes = {loop.partial for loop in statement.loops if loop.partial is not None}
        if axes:
            inside = program.nest_of(statement).inside(0)
            for access in statement.accesses:
                if access.write:
                    counts[access.buffer] = product_of([inside[axis] for axis in sorted(axes)], program.main.full(1.0))
    return counts


def at_place(program: Program, table: Floats, placed: ProducerConsumer) -> Floats:
    """The row of a table over depths, ``(L + 1, n)``, for the depth at which a statement stands, ``(n,)``."""
    if placed.fixed is not None:
        return np.asarray(table[placed.fixed])
    return program.main.pick(table, np.maximum(placed.depth, 0))


def fusible(program: Program, beside_statements: Sequence[ProducerConsumer]) -> Ints | None:
    """Number of leading loops that may be fused, ``(n,)``: those that enclose every statement placed inside the nest.
    None if all may be fused."""
    leading: Ints | None = None
    for beside in beside_statements:
        if beside.fixed == 0:
            continue
        end = np.where(beside.inside, beside.depth, program.main.depth)
        leading = end if leading is None else np.minimum(leading, end)
    return leading


def local_bytes(program: Program, beside_statements: Sequence[ProducerConsumer]) -> dict[str, Floats]:
    """Bytes, ``(n,)``, of the buffers that the main statement shares with a statement inside its nest, by name;
    infinite where that statement stands elsewhere."""
    local: dict[str, Floats] = {}
    for beside in beside_statements:
        buffers = {access.buffer for access in beside.statement.accesses}
        for access, elements in program.accesses():
            if access.buffer in buffers and beside.fixed != 0:
                size = at_place(program, elements, beside) * access.element_bytes
                local[access.buffer] = np.where(beside.inside, size, np.inf) if beside.fixed is None else size
    return local


def row_run(program: Program, beside: ProducerConsumer) -> Floats:
    """Contiguous elements of the region that a statement inside the main nest works on, ``(n,)``: in the buffer that it
    shares with the main statement, else in its own innermost loop."""
    buffers = {access.buffer for access in beside.statement.accesses}
    for access in program.statement.accesses:
        if access.buffer in buffers:
            depth = beside.fixed if beside.fixed is not None else np.maximum(beside.depth, 0)
            return contiguous_run(program.main, access, depth)
    written = next(access for access in beside.statement.accesses if access.write)
    return program.main.full(1.0) * contiguous_run(beside.alone, written, max(0, beside.alone.depth - 1))


def producer_consumer_secs(
    program: Program, beside: ProducerConsumer, busy_inside: Floats, compiled_row: Floats
) -> tuple[Floats, Floats]:
    """Seconds of a producer or consumer of the main statement, and the elements of its vector loop, each (n,).

    Inside the main nest its data are in cache, and it runs row by row over the region of the buffer that the two share.
    With a nest of its own, its loops are fused and its data come from memory or the last cache.
    """
    constants = program.constants
    device, statement, loops = program.device, beside.statement, beside.alone
    per_second = program.hertz * device.cores
    lanes = float(device.lanes)
    vector_cycles = max(
        len(statement.accesses) / constants.load_ports,
        instructions(statement.flop_per_point, constants) / constants.fma_ports,
    )
    unrolled = program.unroll_limit(statement)
    sums = sum_loops(loops)
    if beside.fixed is None or beside.fixed > 0:
        row = row_run(program, beside)
        row = np.where(beside.inside | (beside.fixed is not None), np.maximum(row, compiled_row), row)
        if sums is None:
            cycles = (np.ceil(row * (1.0 / lanes)) * vector_cycles + constants.row_cycles) / row
        else:
            within = SumLoops(row, beside.reduced, beside.reduced)
            cycles = cycles_of_sums(within, unrolled, device.lanes, constants) + constants.row_cycles / (
                row * beside.reduced
            )
        inside = beside.points * cycles / busy_inside * (1.0 / per_second)
        if beside.fixed is not None:
            return inside, row
    busy = pruner.utilisation(parallel_extent(loops), device.cores)
    moved = _bytes_moved(beside)
    if sums is None:
        cycles = loops.points() * (vector_cycles / lanes)
    else:
        cycles = (
            loops.points()
            / hoisted(loops, unrolled, constants)
            * cycles_of_sums(sums, unrolled, device.lanes, constants)
        )
    from_memory = moved > max(device.l3_bytes, device.l2_bytes)
    memory = np.where(
        from_memory, moved / device.bandwidth_bytes, moved / (constants.l2_fill_bytes_per_cycle * per_second) / busy
    )
    alone = np.maximum(cycles / per_second / busy, memory) + constants.launch_secs
    if beside.fixed == 0:
        return program.main.full(0.0) + alone, program.main.full(lanes)
    return np.where(beside.inside, inside, alone * ~beside.inlined), np.where(beside.inside, row, lanes)


def _bytes_moved(beside: ProducerConsumer) -> Floats:
    """Bytes of the buffers that a statement with a nest of its own moves, ``(n,)`` or ``(1,)``."""
    loops = beside.alone
    moved = loops.full(0.0)
    for access in beside.statement.accesses:
        if access.scope == "global":
            # A decision sets the number of partial sums.
            elements = footprint(loops, access)[0] if has_partial_sums(loops.statement) else elements_of(access)
            moved = moved + elements * access.element_bytes
    return moved


def _reduced(loops: Nest, partial_sums: Mapping[str, Floats]) -> Floats:
    """Number of values that are summed into each element of a statement, (n,) or (1,); of partial sums if it reads
    them."""
    made = {access.buffer for access in loops.statement.accesses if access.write}
    for access in loops.statement.accesses:
        if access.buffer in partial_sums and access.buffer not in made:
            return partial_sums[access.buffer]
    return loops.reduced_points(0)


def _not_repeated(program: Program, producer: ProducerConsumer, elements: Floats, depth: int) -> Ints:
    """Depth at which the compiled kernel computes a producer that the schedule places at ``depth``, ``(n,)``. The
    compiler hoists a short sum out of the serial loops around it that its elements do not depend on."""
    main = program.main
    short = hoistable(producer.reduced, program.unroll_limit(producer.statement), program.constants)
    outside = main.full(float(depth)).astype(np.int64)
    for at in reversed(range(parallel_depth(main), depth)):
        same = (elements[at] == elements[depth]) & (outside == at + 1)
        outside = np.where(short & same, at, outside)
    return outside
