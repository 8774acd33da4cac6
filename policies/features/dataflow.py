"""Pruner's temporal dataflow features (section 4.2): how data blocks of a tiled program move between memories.

A program that is tiled over several memories moves its data in the same steps, whatever it computes. These are the ten
steps of its main statement, ``c += a * b``, in the order of time, with the memories of a GPU (of a CPU):

====  ==================================  ===============================================
step  data block                          memory it is accessed in
====  ==================================  ===============================================
0     the accumulators are initialised    registers, or fragments of tensor cores
1     ``a`` is read to be staged          global memory (the levels behind the L1 cache)
2     ``a`` is written where it is used   shared memory (the L1 cache)
3, 4  the same for ``b``
5     ``a`` is read to compute            shared memory (the L1 cache)
6     ``b`` is read to compute
7     ``a`` is computed on                fragments of tensor cores; otherwise all 0
8     ``b`` is computed on
9     ``c`` is updated                    registers, or fragments of tensor cores
====  ==================================  ===============================================

Steps 7 and 8 are the dataflow between shared memory and fragments that section 6.4 adds: on tensor cores the data read
in steps 5 and 6 fill a fragment, which all lanes of a warp hold together.

The 23 numbers of a step: float operations; memory (global, shared, local) one-hot; access (read, write, both) one-hot;
bytes moved, distinct bytes, lines moved, distinct lines; reuse (a loop reads the same data again; data are read and
written in turn; none) one-hot; distance of the reuse in iterations and in bytes; how often an element is used; the four
sizes divided by this number; the stride of the innermost loop in elements; bytes allocated. Operations, sizes,
distances, counts and strides are ``log2(1 + x)``.

``a`` and ``b`` are the two largest buffers that the main statement only reads. All steps are 0 if there is no
reduction: nothing is tiled for reuse then (the paper pads with zeros as well). No program is lowered: the paper's code
takes the numbers from the lowered program, here they are closed-form expressions of the decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Access, Sketch, Statement
from policies.analysis.launch import block_inside, bound_depth, launch
from policies.analysis.quantities import (
    Ints,
    Nest,
    contiguous_run,
    fitting_depth,
    moved_elements,
    nest,
    product_of,
    touched_elements,
    working_set,
)
from policies.analysis.symbols import MEMORY_LINE_BYTES
from policies.arrays import Features, Floats, Matrix
from policies.features.loops import Buffer, buffers

STEPS = 10
NUMBERS = 23
SHAPE = (STEPS, NUMBERS)

GLOBAL, SHARED, LOCAL = range(3)
READ, WRITE, BOTH = range(3)
LOOP_READ, IN_TURN, NO_REUSE = range(3)
L1_SHARE = 0.75
"""Share of a CPU's L1 cache that a tile can count on."""


@dataclass(frozen=True)
class _DataflowStep:
    """One data block of a tiled program; vectors of shape ``(n,)``."""

    memory: int
    """Memory of the access: global, shared or local."""
    access: int
    """Kind of access: read, write or both."""
    reuse: int
    """Kind of reuse, if the block is used again."""
    flop: Floats
    """Float operations."""
    moved: Floats
    """Elements that are moved."""
    distinct: Floats
    """Distinct elements among them."""
    run: Floats
    """Contiguous elements."""
    distance: Floats
    """Iterations between two uses."""
    distance_bytes: Floats
    """Bytes touched between two uses."""
    stride: Floats
    """Stride of the innermost loop, in elements."""
    allocated: Floats
    """Bytes allocated."""

    def numbers(self, element_bytes: int, line_bytes: int) -> Floats:
        """The 23 numbers, ``(n, NUMBERS)``."""
        numbers = np.zeros((len(self.moved), NUMBERS))
        numbers[:, 1 + self.memory] = 1.0
        numbers[:, 4 + self.access] = 1.0
        run_bytes = np.maximum(self.run, 1.0) * element_bytes
        # A run shorter than a line takes a whole line.
        per_line = np.minimum(run_bytes, line_bytes)
        sizes = [size * element_bytes for size in (self.moved, self.distinct)]
        sizes += [size / per_line for size in sizes]
        used = np.maximum(self.moved / np.maximum(self.distinct, 1.0), 1.0)
        reused = used > 1.0
        kind = np.where(reused, self.reuse, NO_REUSE)
        numbers[np.arange(len(kind)), 11 + kind] = 1.0
        numbers[:, 0] = _log(self.flop)
        for column, size in enumerate(sizes):
            numbers[:, 7 + column] = _log(size)
            numbers[:, 17 + column] = _log(size / used)
        numbers[:, 14] = np.where(reused, _log(self.distance), 0.0)
        numbers[:, 15] = np.where(reused, _log(self.distance_bytes), 0.0)
        numbers[:, 16] = _log(used)
        numbers[:, 21] = _log(self.stride)
        numbers[:, 22] = _log(self.allocated * element_bytes)
        return numbers


def _log(values: Floats) -> Floats:
    return np.asarray(np.log2(1.0 + values))


@dataclass(frozen=True)
class _DataflowStage:
    """Staging of an operand, each ``(n,)``: its depth, the elements held there, the elements moved in total, and the
    contiguous elements of a move."""

    depth: Ints
    held: Floats
    moved: Floats
    run: Floats


def dataflow_features(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Features:
    """The steps of every candidate, ``(n, STEPS, NUMBERS)``; see the module's docstring. Needs a described sketch."""
    statement = sketch.statements[0]
    loops = nest(statement, matrix)
    features = np.zeros((len(matrix), STEPS, NUMBERS), dtype=np.float32)
    described = buffers(loops)
    if not any(loops.reduction) or not described:
        return features
    line_bytes = MEMORY_LINE_BYTES[device.kind]
    result, operands = described[0], described[1:3]
    cuda = device.kind == "cuda"
    flop = loops.points() * statement.flop_per_point
    resident = working_set(loops, [_touched_of(described, access) for access in statement.accesses])
    tile_depth = bound_depth(loops) if cuda else _accumulator_depth(loops, statement)
    zero = loops.full(0.0)

    sums = loops.spatial_points(tile_depth)
    if cuda:
        sums = sums * launch(loops).vthreads
    outputs = loops.spatial_points(0)
    bytes_of = result.access.element_bytes
    start = _DataflowStep(LOCAL, WRITE, IN_TURN, zero, outputs, sums, sums, zero, zero, _innermost(result), sums)
    features[:, 0] = start.numbers(bytes_of, line_bytes)
    # Each step of the reduction uses the same sums again.
    step = loops.spatial_points(loops.step_depth)
    update = _DataflowStep(
        LOCAL, BOTH, IN_TURN, flop, loops.points(), outputs, sums, step, step * bytes_of, _innermost(result), sums
    )
    features[:, 9] = update.numbers(bytes_of, line_bytes)

    for number, operand in enumerate(operands):
        access = operand.access
        stage = (
            _shared_stage(sketch, loops, operand)
            if cuda
            else _cached_stage(loops, operand, resident, L1_SHARE * device.l1_bytes)
        )
        whole = operand.touched[0]
        stride = _innermost(operand)
        inside = loops.pick(loops.within, stage.depth)
        inside_bytes = loops.pick(resident, stage.depth)
        size = loops.full(float(prod(access.shape)))
        fetch = _DataflowStep(
            GLOBAL, READ, LOOP_READ, zero, stage.moved, whole, stage.run, inside, inside_bytes, stride, size
        )
        store = _DataflowStep(
            SHARED, WRITE, IN_TURN, zero, stage.moved, stage.held, stage.held, inside, inside_bytes, stride, stage.held
        )
        # Each thread reads its tile's operands anew for each step of the reduction. A warp reads its fragments each
        # time that they are filled.
        tensor = statement.warp > 1
        filled = _filled_depth(sketch, loops, operand) if tensor else None
        at = loops.step_depth if filled is None else filled
        near = operand.touched[at]
        read = near * loops.outer[at] / (statement.warp if filled is None else 1)
        use = _DataflowStep(
            SHARED,
            READ,
            LOOP_READ,
            zero if tensor else flop,
            read,
            stage.moved,
            near,
            step,
            near * access.element_bytes,
            stride,
            stage.held,
        )
        steps = [(1 + 2 * number, fetch), (2 + 2 * number, store), (5 + number, use)]
        if tensor:
            near_bytes = near * access.element_bytes
            fragment = _DataflowStep(LOCAL, BOTH, IN_TURN, flop, read, near, near, step, near_bytes, stride, near)
            steps.append((7 + number, fragment))
        for row, each in steps:
            features[:, row] = each.numbers(access.element_bytes, line_bytes)
    return features


def _touched_of(described: list[Buffer], access: Access) -> Floats:
    """Footprint of an access; 0 for a buffer that is not described, so that the working set leaves it out."""
    for each in described:
        if each.access.buffer == access.buffer:
            return each.touched
    return np.zeros_like(described[0].touched)


def _innermost(buffer: Buffer) -> Floats:
    """Stride of the innermost loop, ``(n,)``."""
    return np.asarray(buffer.strides[-1])


def _accumulator_depth(loops: Nest, statement: Statement) -> int:
    if statement.accumulator_depth is None:
        return loops.step_depth
    return loops.compact_depth(statement.accumulator_depth)


def _cached_stage(loops: Nest, operand: Buffer, resident: Floats, capacity_bytes: float) -> _DataflowStage:
    """Staging on a CPU: the largest sub-nest whose working set stays in the L1 cache."""
    depth = fitting_depth(resident, capacity_bytes)
    held = loops.pick(operand.touched, depth)
    return _DataflowStage(
        depth, held, moved_elements(loops, operand.touched, depth), contiguous_run(loops, operand.access, depth)
    )


def _writer(sketch: Sketch, buffer: str) -> Statement | None:
    """The statement in the loops of the main one that writes a buffer."""
    for other in sketch.statements[1:]:
        if other.fixed_depth and any(its.write and its.buffer == buffer for its in other.accesses):
            return other
    return None


def _scope(statement: Statement) -> str:
    """The memory that a statement writes to."""
    return next(its.scope for its in statement.accesses if its.write)


def _filled_depth(sketch: Sketch, loops: Nest, operand: Buffer) -> int | None:
    """Depth at which the fragments of an operand are filled; None if no statement fills them."""
    writer = _writer(sketch, operand.access.buffer)
    if writer is None or _scope(writer) != "local":
        return None
    return loops.compact_depth(writer.fixed_depth)


def _shared_stage(sketch: Sketch, loops: Nest, operand: Buffer) -> _DataflowStage:
    """Staging on a GPU: the place of the statement that writes the operand to shared memory; without one, the thread's
    tile."""
    writer = _writer(sketch, operand.access.buffer)
    if writer is not None and _scope(writer) == "local":  # this writer fills a fragment, from the staged operand
        sources = [_writer(sketch, its.buffer) for its in writer.accesses if not its.write]
        writer = next((source for source in sources if source is not None), None)
    at = bound_depth(loops) if writer is None else loops.compact_depth(writer.fixed_depth)
    inside = block_inside(loops, at)
    held = touched_elements(loops.statement, operand.access, inside)
    turns = [
        loops.extents[level]
        for level in range(at)
        if not loops.kinds[level].startswith(("blockIdx", "threadIdx", "vthread"))
    ]
    rounds = product_of(turns, loops.full(1.0)) * launch(loops).blocks
    run = contiguous_run(loops, operand.access, at, inside)
    return _DataflowStage(np.full(loops.count, at, dtype=np.int64), held, held * rounds, run)
