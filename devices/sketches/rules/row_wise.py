"""Sketch rule "row-wise": reductions along contiguous rows, and the steps on each row around them (CPU).

Softmax, norms, means and sums read a row several times. MetaSchedule reduces a row element by element, and each
addition waits for the one before (LLVM may not change the order of a floating-point sum). Or it computes the partial
sums of all rows before the first total. Here a few rows go through all steps while they are in the cache, and then the
next rows follow:

    parallel over rows, a few at a time
      for each step of the kernel
        partial[lane] += ...      along the rows, vectorised over up to 64 lanes
        four[lane] += partial     vectorised over 4 lanes, unrolled
        total += four[lane]       unrolled
        or: element by element    along the rows, vectorised
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from tvm import IRModule
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target
from tvm.tirx import IntImm
from tvm_ffi import structural_walk

from devices.sketches.description.accesses import DATA_PARALLEL, REDUCTION
from devices.sketches.inlining import blocks_of, inline_element_wise
from devices.sketches.rules.one_sketch import one_sketch
from devices.sketches.rules.row_steps import row_bytes, row_step
from devices.sketches.strides import alike, strides_of
from fleet_tune.base.sketch import RowStep, RowWise

ROW_WISE = "row-wise"
# Partial results of one row: several vectors hide the latency of an addition.
MAX_LANES = 64
# Lanes to which these partial results are reduced, before they are reduced to one.
FEW_LANES = 4
# Rows that go through a step together, which also hides latency.
MAX_ROWS = 8
# Shorter rows are not reduced by this rule: several of them are better reduced side by side.
MIN_ROW = 16


def row_wise(mod: IRModule, target: Target) -> list[Schedule]:
    """Return the row-wise design spaces of ``mod`` (its function ``main``); none if the rule does not apply.

    The schedules' traces hold the open decisions; a schedule's own decisions are arbitrary valid ones.
    """
    return one_sketch(mod, target, _apply)


@dataclass(frozen=True)
class _RowStep:
    """A block of the kernel."""

    block: SBlockRV
    rows: int
    """Number of leading spatial axes that run over rows."""
    columns: int
    """Number of the last axes that can be merged into one, because all operands run over them alike."""
    row: int
    """Elements of a row that the block reduces; 0 if it reduces nothing."""


def row_wise_kernel(mod: IRModule, target: Target) -> RowWise | None:
    """Return the work of the kernels of :func:`row_wise` on a row, with the decision columns of the rule's trace; None
    if the rule does not apply."""
    sch = Schedule(mod, seed=1, debug_mask="none", error_render_level="none")
    found = _steps(sch, target)
    if found is None:
        return None
    leading, steps = found
    blocks = [sch.get(step.block) for step in steps]
    rows = prod(leading)
    reductions = sum(step.row > 0 for step in steps)
    # One choice for each reduction, the tile of the rows, and a tile for each of the other steps that have columns.
    choice, innermost = iter(range(reductions)), iter(range(reductions + 3, reductions + 3 + 2 * len(steps), 2))
    described: list[RowStep] = []
    for step, block in zip(steps, blocks, strict=True):
        if step.row:
            reduced = len(block.iter_vars) - step.rows
            described.append(row_step(block, reduced, rows, _lanes(step.row)[0], next(choice)))
        else:
            column = next(innermost) if step.columns else None
            described.append(row_step(block, step.columns, rows, 0, column))
    held, moved = row_bytes(sch.mod["main"], blocks, len(leading), rows)
    return RowWise(rows, reductions + 1, tuple(described), held, moved)


def _apply(sch: Schedule, target: Target) -> bool:
    found = _steps(sch, target)
    if found is None:
        return False
    leading, steps = found
    stages = [stage for step in steps for stage in _stages(sch, step)]

    last = stages[-1]
    loops = list(sch.get_loops(last.block))
    at = len(leading) - 1
    if int(sch.get(loops[at]).extent) != leading[at]:
        loops[at : at + 1] = sch.split(loops[at], [leading[at], None])
    around, inner = loops[: len(leading)], loops[len(leading) :]
    outer, tile = sch.split(around[-1], sch.sample_perfect_tile(around[-1], n=2, max_innermost_factor=MAX_ROWS))
    parallel = sch.fuse(*around[:-1], outer)
    sch.parallel(parallel)
    for stage in reversed(stages[:-1]):
        sch.compute_at(stage.block, parallel, preserve_unit_loops=True)
    for stage in stages[:-1]:
        block = sch.get(stage.block)
        own = list(zip(block.iter_vars, sch.get_loops(stage.block)[1:], strict=True))
        along = [loop for axis, loop in own if int(axis.iter_type) == REDUCTION]
        stage.finish(sch, [loop for axis, loop in own if int(axis.iter_type) != REDUCTION], along)
    reduces = isinstance(last, _Total)
    last.finish(sch, [tile] if reduces else [tile, *inner], inner if reduces else [])
    return True


def _steps(sch: Schedule, target: Target) -> tuple[tuple[int, ...], list[_RowStep]] | None:
    """Return the extents of the axes of rows, and the steps that a row goes through, after inlining; None if the rule
    does not apply."""
    reductions = {block.name_hint for block in blocks_of(sch) if _extents(block, REDUCTION)}
    if not reductions:
        return None
    inline_element_wise(sch, target, keep=reductions)
    _inline_a_view_of_the_result(sch)
    blocks = blocks_of(sch)
    rows = {_extents(block, DATA_PARALLEL) for block in blocks if _extents(block, REDUCTION)}
    if len(rows) != 1 or not all(rows):
        return None
    (leading,) = rows
    steps = [_step(sch, block, leading) for block in blocks]
    if any(step is None for step in steps):
        return None
    return leading, [step for step in steps if step is not None]


@dataclass(frozen=True)
class _RowStage:
    """A block in the loop over rows, which is scheduled by :meth:`finish`."""

    block: SBlockRV

    def finish(self, sch: Schedule, spatial: list[LoopRV], along: list[LoopRV]) -> None:
        """Schedule the block. ``spatial``, ``along``: its own loops over spatial axes, and over reduction axes."""


@dataclass(frozen=True)
class _Partial(_RowStage):
    """Partial results of each lane."""

    lanes: int
    """Number of lane axes, which TVM puts first."""

    def finish(self, sch: Schedule, spatial: list[LoopRV], along: list[LoopRV]) -> None:
        lanes, rows = spatial[: self.lanes], spatial[self.lanes :]
        sch.reorder(*along, *rows, *lanes)
        for at in range(len(sch.get(self.block).writes)):
            sch.set_scope(self.block, at, "local")
        lane = sch.fuse(*lanes) if len(lanes) > 1 else lanes[0]
        _unroll_and_vectorize(sch, rows, lane)
        initial = sch.decompose_reduction(self.block, along[0])
        *initial_rows, initial_lane = sch.get_loops(initial)[-len(rows) - 1 :]
        _unroll_and_vectorize(sch, initial_rows, initial_lane)


def _unroll_and_vectorize(sch: Schedule, rows: Sequence[LoopRV], lane: LoopRV) -> None:
    for loop in rows:
        sch.unroll(loop)
    sch.vectorize(lane)


@dataclass(frozen=True)
class _Total(_RowStage):
    """The sum of the partial results."""

    def finish(self, sch: Schedule, spatial: list[LoopRV], along: list[LoopRV]) -> None:
        sch.reorder(*spatial, *along)
        for loop in along:
            sch.unroll(loop)


@dataclass(frozen=True)
class _ElementWise(_RowStage):
    """A step on each element."""

    columns: int

    def finish(self, sch: Schedule, spatial: list[LoopRV], along: list[LoopRV]) -> None:
        assert not along, "it reduces nothing"
        if self.columns:
            columns = spatial[-self.columns :]
            whole = sch.fuse(*columns) if len(columns) > 1 else columns[0]
            _, lanes = sch.split(whole, sch.sample_perfect_tile(whole, n=2, max_innermost_factor=MAX_LANES))
            sch.vectorize(lanes)


def _stages(sch: Schedule, step: _RowStep) -> list[_RowStage]:
    """Return the stages that a block becomes, in program order."""
    if not step.row:
        return [_ElementWise(step.block, step.columns)]
    along = sch.get_loops(step.block)[step.rows :]
    row = sch.fuse(*along) if len(along) > 1 else along[0]
    few, counts = _lanes(step.row)
    many = sch.sample_categorical(list(counts), [1 / len(counts)] * len(counts))
    if few == 1:
        _, lanes = sch.split(row, [None, many])
        return [_Partial(sch.rfactor(lanes, step.rows), 1), _Total(step.block)]
    *_, lanes = sch.split(row, [None, many, few])
    fewer = sch.rfactor(lanes, step.rows)
    *_, several, _ = sch.get_loops(fewer)
    return [_Partial(sch.rfactor(several, step.rows), 2), _Partial(fewer, 1), _Total(step.block)]


def _lanes(length: int) -> tuple[int, tuple[int, ...]]:
    """Return, for rows of ``length`` elements, the number of lanes that are added up last, and the possible factors.
    This number times a factor is the number of partial results. There is no factor if no number of lanes divides the
    row."""
    few = FEW_LANES if length % FEW_LANES == 0 else 1
    most = min(MAX_LANES, length // 2) // few
    counts = tuple(n for n in range(1, most + 1) if length // few % n == 0 and n * few > 1)
    return few, counts


def _step(sch: Schedule, block: SBlock, leading: tuple[int, ...]) -> _RowStep | None:
    """Return the step of a block; None if its first axes do not run over the rows, or it does not run along contiguous
    rows."""
    spatial, reduced = _extents(block, DATA_PARALLEL), _extents(block, REDUCTION)
    rows = len(leading)
    if [int(axis.dom.extent) for axis in block.iter_vars] != [*spatial, *reduced] or _has_blocks(block):
        return None
    if len(spatial) < rows or spatial[: rows - 1] != leading[:-1] or spatial[rows - 1] % leading[-1]:
        return None
    strides = strides_of(block)
    if strides is None:
        return None
    variable = sch.get_sblock(block.name_hint, "main")
    if not reduced:
        # If the last row axis of this block is longer, its surplus factor is a column axis.
        parts = spatial[rows - 1] // leading[-1]
        extents = ([parts] if parts > 1 else []) + list(spatial[rows:])
        steps = [each[rows - (parts > 1) :] for each in strides]
        return _RowStep(variable, rows, alike(extents, steps), 0)
    read = [each for each in strides if any(each[rows:])]
    contiguous = tuple(prod(reduced[at + 1 :]) for at in range(len(reduced)))
    if spatial != leading or not read or any(each[rows:] != contiguous for each in read):
        return None
    # If several rows read the same values, as in a product, other rules do better: they keep these values in registers.
    if any(not step for each in read for step, extent in zip(each, spatial, strict=False) if extent > 1):
        return None
    row = prod(reduced)
    return _RowStep(variable, rows, 0, row) if row >= MIN_ROW and _lanes(row)[1] else None


def _extents(block: SBlock, kind: int) -> tuple[int, ...]:
    """Return the extents of the axes of a kind; empty if one of them is not a number."""
    extents = [iteration.dom.extent for iteration in block.iter_vars if int(iteration.iter_type) == kind]
    return tuple(int(extent) for extent in extents) if all(isinstance(n, IntImm) for n in extents) else ()


def _has_blocks(block: SBlock) -> bool:
    inner: list[SBlockRealize] = []
    structural_walk(block.body, (SBlockRealize, inner.append))
    return bool(inner)


def _inline_a_view_of_the_result(sch: Schedule) -> None:
    """If the last block only moves the result of an element-wise block, inline it, so that the element-wise block
    writes to the final place."""
    last = sch.get_child_blocks(sch.get_sblock("root", "main"))[-1]
    producers = sch.get_producers(last)
    if len(producers) == 1 and not any(_extents(sch.get(each), REDUCTION) for each in (last, *producers)):
        with suppress(RuntimeError):
            sch.reverse_compute_inline(last)
