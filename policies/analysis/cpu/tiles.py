"""Data of the innermost loops of a program, as they are scheduled and as they are compiled.

``n`` candidates; every vector has the shape ``(n,)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fleet_tune.base.sketch import Access
from policies.analysis.cpu.parts import (
    ProducerConsumer,
    RegisterTile,
    elements_along,
    innermost_reduction,
    memory_parts,
    parallel_depth,
)
from policies.analysis.cpu.program import Program
from policies.analysis.quantities import Ints, fitting_depth, stride_along, unit_stride
from policies.arrays import Floats


def scheduled_tile(program: Program, vector: Floats) -> RegisterTile:
    """The inner loop as it is scheduled: the loops inside the reduction, and the tile of the sums."""
    main, statement = program.main, program.statement
    vectors = np.ceil(vector * (1.0 / program.device.lanes))
    per_point = vectors / vector  # vector operations for one point
    operations = main.pick(program.spatial, program.step) * per_point
    if statement.accumulator_depth is None:
        accumulators, reduced = operations, innermost_reduction(main, program.step)
    else:
        depth = main.compact_depth(statement.accumulator_depth)
        accumulators, reduced = program.spatial[depth] * per_point, main.reduced_points(depth)
    loads, operands = _loads(program, vector, program.step)
    return RegisterTile(vector, vectors, operations, accumulators, reduced, operands, loads / operations)


def unrolled_tile(program: Program, vector: Floats, limit: Floats) -> RegisterTile:
    """The largest sub-nest that the schedule unrolls, including its reduction loops. In straight-line code a sum stays
    in its register from one step to the next, and loaded operands are used again."""
    main = program.main
    depth = np.maximum(fitting_depth(main.within, limit * vector), parallel_depth(main))
    vectors = np.ceil(vector * (1.0 / program.device.lanes))
    operations = main.pick(main.within, depth) * (vectors / vector)
    accumulators = main.pick(program.spatial, depth) * (vectors / vector)
    loads, operands = _loads(program, vector, depth)
    return RegisterTile(
        vector, vectors, operations, accumulators, operations / accumulators, operands, loads / operations
    )


def compiler_tile(program: Program, limit: Floats) -> RegisterTile:
    """The inner loop as the compiler makes it if the schedule vectorises nothing.

    The compiler unrolls short loops and vectorises the innermost loop that is left, if this loop runs along the
    result's rows; else ``vector`` is 1.
    """
    main, statement = program.main, program.statement
    if not main.depth:
        return scheduled_tile(program, main.full(1.0))
    depth = fitting_depth(main.within, limit)
    at = np.maximum(depth - 1, 0)
    along = main.along_rows
    vector = np.where(np.array(along)[at] & (depth > 0), main.pick(main.extents, at), 1.0)
    vectors = np.ceil(vector * (1.0 / program.device.lanes))
    accumulators = main.pick(program.spatial, depth)
    inner = main.pick(main.within, depth) / accumulators
    lanes = np.minimum(vector, program.device.lanes)
    loads = main.full(0.0)
    for access, elements in program.operands():
        loaded = main.pick(elements, depth)
        for axis in {axis for k, axis in enumerate(main.axes) if along[k]}:
            if unit_stride(statement, access, axis) is False:
                gathered = (np.array(main.axes)[at] == axis) & (elements_along(main, access, axis, vector) > 1)
                loaded = np.where(gathered, loaded * _gather_loads(program, access, axis, lanes), loaded)
        loads += loaded
    return RegisterTile(
        vector, vectors, accumulators * inner, accumulators, inner, main.full(1.0), loads / (accumulators * inner)
    )


def vectorised_around(
    program: Program, beside_statements: Sequence[ProducerConsumer], vector: Floats, depth: int
) -> RegisterTile | None:
    """The compiler's tile of sums (inside ``depth``) that the schedule does not vectorise. If there are few sums, the
    compiler unrolls them all and vectorises the loop around them, together with the code that writes the sums back.
    This loop must be serial, run along the result's rows, and contain no producer. This straight-line code does not
    count as unrolled by the schedule. ``vector`` is 1 for candidates where the compiler does not do so; the result is
    None if it never does."""
    constants = program.constants
    main = program.main
    if not main.depth:
        return None
    inside = main.within[depth]
    small = (
        (vector == 1.0)
        & (inside <= constants.fully_unrolled)
        & (main.reduced_points(depth) <= constants.fully_unrolled_steps)
    )
    serial = np.array([kind == "serial" for kind in main.kinds])
    at = np.maximum(fitting_depth(main.within, inside) - 1, 0)
    for beside in beside_statements:
        if beside.fixed is None:  # a producer that stands in that loop, or is inlined
            small &= (beside.depth <= at) & ~beside.inlined
    if not (small & serial[at]).any():
        return None
    tile = compiler_tile(program, inside)
    taken = small & serial[at] & (tile.vector >= constants.least_row * program.device.lanes)
    loads = tile.loads * constants.around_loads
    return replace(
        tile, vector=np.where(taken, tile.vector, 1.0), vectors=np.where(taken, tile.vectors, 1.0), loads=loads
    )


def _loads(program: Program, vector: Floats, depth: Ints) -> tuple[Floats, Floats]:
    """Loads of a sub-nest, which loads each operand once, and the registers that hold the operands, each ``(n,)``."""
    main, statement = program.main, program.statement
    vectors = np.ceil(vector * (1.0 / program.device.lanes))
    loads, operands = main.full(0.0), main.full(0.0)
    parts = memory_parts(vector, program.device.lanes)
    axis = main.axes[-1] if main.axes else 0
    for access, elements in program.operands():
        loaded = main.pick(elements, depth)
        unit = unit_stride(statement, access, axis) if main.axes else None
        if unit:
            loaded = loaded * (vectors / vector) * parts
            # The vectors of one row of the tile are kept and used for every other row.
            operands += np.minimum(loaded, vectors)
        elif unit is False:
            distinct = elements_along(main, access, axis, vector)
            lanes = np.minimum(vector, program.device.lanes)
            gathered = loaded / distinct * (vector / lanes) * _gather_loads(program, access, axis, lanes)
            loaded = np.where(distinct > 1, gathered, loaded)
        loads += loaded  # without a unit stride: a broadcast for each element, or a gather of single elements
    return loads, operands


def _gather_loads(program: Program, access: Access, axis: int, lanes: Floats) -> Floats:
    """Loads that a vector of ``lanes`` lanes costs if they are not adjacent in memory, ``(n,)``. Each lane is loaded
    and put into its place. Lanes a small stride apart can cost less: their whole span is loaded and shuffled."""
    constants = program.constants
    one_by_one = lanes * constants.gather_loads
    stride = stride_along(program.statement, access, axis)
    return one_by_one if stride is None else np.minimum(one_by_one, stride * constants.strided_loads)
