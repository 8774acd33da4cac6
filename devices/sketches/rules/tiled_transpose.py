"""Sketch rule "tiled-transpose": element-wise kernels that read across the lines they write (CPU).

MetaSchedule runs such a kernel line by line of its output and leaves no decision open. If the input is contiguous along
another axis than the output, each element is then read from another cache line, and that line is evicted before its
next element is needed. With tiles of both axes, every cache line that is fetched is used completely:

    parallel over fused outer axes
      the axis along which the input is contiguous     a tile of it
        the axis along which the output is contiguous  a tile of it, vectorised
"""

from __future__ import annotations

import tvm
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, Schedule
from tvm.target import Target
from tvm.tirx import BufferStore
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_walk

from devices.sketches.description.accesses import DATA_PARALLEL
from devices.sketches.rules.one_sketch import one_sketch

TILED_TRANSPOSE = "tiled-transpose"
# A tile of 64 by 64 floats is half of a small first-level cache.
MAX_TILE = 64


def tiled_transposes(mod: tvm.IRModule, target: Target) -> list[Schedule]:
    """Return the tiled design spaces of ``mod`` (its function ``main``); none if the rule does not apply.

    The schedules' traces hold the open decisions; a schedule's own decisions are arbitrary valid ones.
    """
    return one_sketch(mod, target, lambda schedule, _: _apply(schedule))


def _apply(sch: Schedule) -> bool:
    names = [sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root", "main"))]
    for name in names[:-1]:
        sch.compute_inline(sch.get_sblock(name, "main"))
    block = sch.get_sblock(names[-1], "main")
    axes = crossed_axes(sch.get(block))
    if axes is None:
        return False
    crossed, contiguous = axes
    loops = sch.get_loops(block)
    outer, inner = list(loops), []
    for axis in (crossed, contiguous):
        factors = sch.sample_perfect_tile(loops[axis], n=2, max_innermost_factor=MAX_TILE)
        outer[axis], tile = sch.split(loops[axis], factors)
        inner.append(tile)
    sch.reorder(*outer, *inner)
    sch.parallel(sch.fuse(*outer))
    sch.vectorize(inner[-1])
    return True


def crossed_axes(block: SBlock) -> tuple[int, int] | None:
    """Return two positions among the axes of ``block``: the crossed axis, along which some input is contiguous and the
    output is not, and the axis along which the output is contiguous. If several axes are crossed, the longest is
    returned; None if no axis is.
    """
    store = block.body
    if not isinstance(store, BufferStore) or any(int(i.iter_type) != DATA_PARALLEL for i in block.iter_vars):
        return None
    variables = [iteration.var for iteration in block.iter_vars]
    extents = [int(iteration.dom.extent) for iteration in block.iter_vars]

    def long_axes(index: tvm.ir.Expr) -> set[int]:
        used = undefined_vars(index)
        return {
            at
            for at, axis in enumerate(variables)
            if extents[at] > 1 and any(axis.same_as(variable) for variable in used)
        }

    written = [axis for index in store.indices for axis in long_axes(index)]
    if not written:
        return None
    contiguous, crossed = written[-1], set[int]()

    def load(node: TensorLoad) -> None:
        # An input that does not vary along the output's lines, as a bias may be, crosses nothing.
        along = [axes for index in node.indices if (axes := long_axes(index))]
        if along and contiguous not in along[-1] and any(contiguous in axes for axes in along):
            crossed.update(along[-1])

    structural_walk(store.value, (TensorLoad, load))
    return (max(crossed, key=lambda axis: (extents[axis], axis)), contiguous) if crossed else None
