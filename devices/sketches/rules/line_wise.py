"""Sketch rule "line-wise": element-wise kernels along the lines that they write (CPU).

MetaSchedule fuses all axes of such a kernel into one loop and leaves no decision open. If an input does not have lines
of the same length (parts of a wider tensor, as the gates of a recurrent cell; images that are enlarged), its indices
are then divisions and remainders, and nothing is vectorised. In this rule, only axes that can be merged for all
operands are fused:

    parallel over fused outer axes
      along the line                    also in parallel if there are few lines
        a tile of it                    vectorised

If the tile is one element, LLVM decides on vectorisation.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import SBlock, Schedule
from tvm.target import Target
from tvm.tirx import BufferStore

from devices.sketches.description.accesses import DATA_PARALLEL
from devices.sketches.inlining import blocks_of, inline_element_wise
from devices.sketches.rules.one_sketch import one_sketch
from devices.sketches.rules.row_copies import copies_rows
from devices.sketches.rules.tiled_transpose import crossed_axes
from devices.sketches.strides import alike, strides_of

LINE_WISE = "line-wise"
MAX_LANES = 64
# From this number of lines on, there is enough work for all cores.
MANY_LINES = 64


def line_wise(mod: tvm.IRModule, target: Target) -> list[Schedule]:
    """Return the line-wise design space of ``mod`` (its function ``main``); none if the kernel has a reduction, another
    rule handles it (tiled transposes, row copies), or several blocks are left after inlining.

    The schedules' traces hold the open decisions; a schedule's own decisions are arbitrary valid ones.
    """
    return one_sketch(mod, target, _apply)


def _apply(sch: Schedule, target: Target) -> bool:
    inline_element_wise(sch, target, keep=())
    blocks = blocks_of(sch)
    if len(blocks) != 1 or not _is_element_wise(blocks[0]):
        return False
    (block,) = blocks
    if copies_rows(block) or crossed_axes(block) is not None:
        return False
    extents = [int(iteration.dom.extent) for iteration in block.iter_vars]
    strides = strides_of(block)
    columns = 1 if strides is None else alike(extents, strides)
    loops = list(sch.get_loops(sch.get_sblock(block.name_hint, "main")))
    outer, along = loops[:-columns], loops[-columns:]
    line = sch.fuse(*along) if columns > 1 else along[0]
    parts = 2 if prod(extents[:-columns]) >= MANY_LINES else 3
    tiles = sch.split(line, sch.sample_perfect_tile(line, n=parts, max_innermost_factor=MAX_LANES))
    sch.parallel(sch.fuse(*outer, *tiles[:-2]))
    sch.vectorize(tiles[-1])
    return True


def _is_element_wise(block: SBlock) -> bool:
    """Return true if a block computes each element independently, and writes lines along its last axis."""
    store = block.body
    if not isinstance(store, BufferStore) or not block.iter_vars:
        return False
    if any(int(axis.iter_type) != DATA_PARALLEL for axis in block.iter_vars):
        return False
    last = block.iter_vars[-1]
    return int(last.dom.extent) > 1 and len(store.indices) > 0 and bool(last.var.same_as(store.indices[-1]))
