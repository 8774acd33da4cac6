"""Sketch rule "register-blocked": kernels that accumulate a tile of the output in registers (CPU).

MetaSchedule's multi-level tiling accumulates in the output buffer, so every multiply-accumulate loads and stores its
sum. The kernels of this rule keep a small tile of sums in a local buffer. The loops over the tile are unrolled and
vectorised, so LLVM holds the tile in registers over all reduction loops:

    parallel over fused outer tiles (S0)
      middle tiles (S1)
        tile = 0                      unrolled, vectorised
        reduction loops (R0, R1)
          tile += a * b               unrolled, vectorised (S2)
        output = epilogue(tile)       unrolled, vectorised

Every open decision (tile sizes, the place of the padding) is a sampling instruction of the trace. So TVM loads a record
of such a schedule like any MetaSchedule record.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm.ir import Expr, TensorLoad
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target
from tvm.tirx import Add, BufferStore, IntImm, Max, Min, Var
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_walk

from devices.sketches.description.accesses import DATA_PARALLEL, REDUCTION
from devices.sketches.inlining import blocks_of, inline_element_wise
from devices.sketches.rules.loops import split_open, unroll_and_vectorize
from devices.sketches.rules.one_sketch import one_sketch

REGISTER_BLOCKED = "register-blocked"
# One vectorised loop of up to 64 lanes is as fast as an unrolled loop over vectors: LLVM splits it into registers.
MAX_LANES = 64
# Fewer lanes are not worth a block of their own.
MIN_LANES = 4
# The innermost non-vector axis of the register tile; more accumulators than this never fit the register file.
MAX_TILE = 32
# The other axes of the register tile: a second or third row helps if the innermost axis is short.
MAX_OUTER_TILE = 4
# Innermost reduction loops.
MAX_REDUCTION_TILE = 64


@dataclass(frozen=True)
class Reduction:
    """A block ``C[spatial] += f(...)``, described for the rule. Axes are positions among the block's loops."""

    name: str
    extents: tuple[int, ...]
    batch: tuple[int, ...]
    """Axes of one iteration, and axes that index all of several operands. Nothing is reused along them, so they only
    run in parallel."""
    tiled: tuple[int, ...]
    """Other spatial axes, without ``vector``."""
    vector: int
    """Axis along which the output is contiguous."""
    reductions: tuple[int, ...]


def register_blocked(mod: tvm.IRModule, target: Target) -> list[Schedule]:
    """Return the register-blocked design spaces of ``mod`` (its function ``main``); none if the rule does not apply.

    The schedules' traces hold the open decisions; a schedule's own decisions are arbitrary valid ones.
    """
    return one_sketch(mod, target, block_registers)


def block_registers(sch: Schedule, target: Target) -> bool:
    """Schedule the function ``main``; false if the rule does not apply."""
    main = _inline_and_find_main(sch, target)
    if main is None:
        return False
    block, shape = main
    consumer = _epilogue(sch, block)
    paddings = [p for p in sch.get_producers(block) if _is_spatial(sch, p)]
    if not _only_these_blocks(sch, [block, consumer, *paddings]):
        return False

    loops = sch.get_loops(block)
    outer: list[LoopRV] = [loops[axis] for axis in shape.batch]
    middle: list[LoopRV] = []
    tile: list[LoopRV] = []
    parts: dict[int, list[LoopRV]] = {}
    for position, axis in enumerate((*shape.tiled, shape.vector)):
        # The vector axis comes last, and the innermost of the others before it.
        limit = (MAX_LANES, MAX_TILE, MAX_OUTER_TILE)[min(len(shape.tiled) - position, 2)]
        parts[axis] = split_open(sch, loops[axis], 3, limit)
    # Output channels outermost: a thread then reads its share of the weights only.
    outer += [parts[axis][0] for axis in (shape.vector, *shape.tiled)]
    middle += [parts[axis][1] for axis in (*shape.tiled, shape.vector)]
    tile += [parts[axis][2] for axis in (*shape.tiled, shape.vector)]
    split = [axis for axis in shape.reductions if shape.extents[axis] > 1]
    unit = [loops[axis] for axis in shape.reductions if shape.extents[axis] == 1]
    if len(split) > 1:
        reduced = [split_open(sch, loops[axis], 2, MAX_REDUCTION_TILE) for axis in split]
        reduction = [*unit, *(r[0] for r in reduced), *(r[1] for r in reduced)]
    else:
        reduction = [*unit, *(loops[axis] for axis in split)]

    sch.reorder(*outer, *middle, *reduction, *tile)
    sch.reverse_compute_at(consumer, middle[-1], preserve_unit_loops=True)
    sch.set_scope(block, 0, "local")
    sch.parallel(sch.fuse(*outer))
    unroll_and_vectorize(sch, tile)
    initial = sch.decompose_reduction(block, reduction[0])
    unroll_and_vectorize(sch, sch.get_loops(initial)[-len(tile) :])
    rank = len(sch.get(consumer).iter_vars)
    unroll_and_vectorize(sch, sch.get_loops(consumer)[-rank:])
    for padding in paddings:
        _place_padding(sch, padding)
    return True


def _place_padding(sch: Schedule, padding: SBlockRV) -> None:
    """Vectorise the padding along its channels, and leave its place open: at the root, where it runs in parallel before
    the main block, or inside of the main block's loops, where it stays in the cache."""
    loops = sch.get_loops(padding)
    channels = int(sch.get(loops[-1]).extent)
    # The lanes are a proper divisor: a block that covers all channels has no channel axis left, and cannot be moved.
    lanes = max(n for n in range(1, MAX_LANES + 1) if channels % n == 0 and (n < channels or n == 1))
    if lanes >= MIN_LANES:
        rest, vector = sch.split(loops[-1], [None, lanes])
        sch.vectorize(vector)
        padding = sch.blockize(vector)
        loops = [*loops[:-1], rest]
    # This matters only if the padding stays at the root: a move makes new, serial loops.
    sch.parallel(sch.fuse(*(loops[:-2] or loops[:1])))
    location = sch.sample_compute_location(padding)
    sch.compute_at(padding, location, preserve_unit_loops=True)


def _inline_and_find_main(sch: Schedule, target: Target) -> tuple[SBlockRV, Reduction] | None:
    """Inline element-wise blocks as MetaSchedule does, and return the only reduction; None if there is not exactly
    one."""
    described = {
        block.name_hint: reduction for block in blocks_of(sch) if (reduction := describe_reduction(block)) is not None
    }
    if len(described) != 1:
        return None
    (shape,) = described.values()
    inline_element_wise(sch, target, keep={shape.name})
    return sch.get_sblock(shape.name, "main"), shape


def describe_reduction(block: SBlock) -> Reduction | None:
    """Return the description of an unscheduled block ``C[spatial] = C[spatial] + f(...)`` (or max, min).

    Returns None for every other block, and if the output is not contiguous along a spatial axis.
    """
    store = block.body
    if block.init is None or not isinstance(store, BufferStore) or not isinstance(store.value, Add | Max | Min):
        return None
    axes = [iteration.var for iteration in block.iter_vars]
    kinds = [int(iteration.iter_type) for iteration in block.iter_vars]
    extents = tuple(int(iteration.dom.extent) for iteration in block.iter_vars)
    if any(kind not in (DATA_PARALLEL, REDUCTION) for kind in kinds):
        return None
    long = [at for index in store.indices if (at := _position(axes, index)) is not None and extents[at] > 1]
    if not long:
        return None
    used: list[set[int]] = []

    def load(node: TensorLoad) -> None:
        variables = [variable for index in node.indices for variable in undefined_vars(index)]
        used.append({at for variable in variables if (at := _position(axes, variable)) is not None})

    structural_walk(store.value.b, (TensorLoad, load))
    spatial = [axis for axis, kind in enumerate(kinds) if kind == DATA_PARALLEL and axis != long[-1]]
    reused = len(used) > 1
    batch = [axis for axis in spatial if extents[axis] == 1 or (reused and all(axis in operand for operand in used))]
    return Reduction(
        name=block.name_hint,
        extents=extents,
        batch=tuple(batch),
        tiled=tuple(axis for axis in spatial if axis not in batch),
        vector=long[-1],
        reductions=tuple(axis for axis, kind in enumerate(kinds) if kind == REDUCTION),
    )


def _position(axes: list[Var], expression: Expr) -> int | None:
    """Return the position of ``expression`` among the axes; None if it is not one of them."""
    return next((i for i, axis in enumerate(axes) if axis.same_as(expression)), None)


def _epilogue(sch: Schedule, block: SBlockRV) -> SBlockRV:
    """Return the element-wise block that is the only reader of the output of ``block``. If there is no such block,
    insert a copy of the output and return it."""
    consumers = sch.get_consumers(block)
    if len(consumers) == 1:
        reader, (written,) = sch.get(consumers[0]), sch.get(block).writes
        same_shape = [int(i.dom.extent) for i in reader.iter_vars] == [int(n) for n in written.source.shape]
        axes = [iteration.var for iteration in reader.iter_vars]
        reads = [region.region for region in reader.reads if region.source.same_as(written.source)]
        if same_shape and reads and _is_identity(reads[0], axes) and _is_in_order(reader.writes[0].region, axes):
            return consumers[0]
    return sch.cache_write(block, 0, "local")


def _is_identity(region: list[tvm.ir.Range], axes: list[Var]) -> bool:
    """Return true if the index of each dimension k of a region is axis k, or a constant in a dimension of one element,
    as in a bias."""
    return len(region) == len(axes) and all(
        r.min.same_as(axis) or (isinstance(r.min, IntImm) and int(r.extent) == 1)
        for r, axis in zip(region, axes, strict=True)
    )


def _is_in_order(region: list[tvm.ir.Range], axes: list[Var]) -> bool:
    """Return true if the indices of a region are a block's axes in order. If the region has another number of
    dimensions, as for tiles of an axis, only the last dimension is checked: it must run along the last axis."""
    if len(region) == len(axes):
        return _is_identity(region, axes)
    return any(variable.same_as(axes[-1]) for variable in undefined_vars(region[-1].min))


def _is_spatial(sch: Schedule, block: SBlockRV) -> bool:
    return all(int(iteration.iter_type) == DATA_PARALLEL for iteration in sch.get(block).iter_vars)


def _only_these_blocks(sch: Schedule, blocks: list[SBlockRV]) -> bool:
    return {block.name_hint for block in blocks_of(sch)} == {sch.get(block).name_hint for block in blocks}
