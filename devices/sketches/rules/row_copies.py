"""Sketch rule "row-copies": kernels that only move rows (CPU).

Look-ups in tables, slices and permutations of outer axes copy contiguous elements. LLVM turns a plain copy loop into a
call of ``memcpy``. For rows of some KiB this takes half the time of a vectorised loop:

    parallel over fused outer axes
      copy along the axis along which both sides are contiguous

On one core no loop is parallel: in the function that TVM makes of a parallel loop, LLVM does not know that source and
destination do not overlap, and makes no call.
"""

from __future__ import annotations

import tvm
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, Schedule
from tvm.target import Target
from tvm.tirx import BufferStore
from tvm.tirx.analysis import undefined_vars

from devices.sketches.description.accesses import DATA_PARALLEL

ROW_COPIES = "row-copies"
# Length from which on a call is worth its cost.
MIN_BYTES = 256


def row_copies(mod: tvm.IRModule, target: Target) -> list[Schedule]:
    """Return the design space of ``mod`` (its function ``main``); none if it does more than copy rows."""
    if target.kind.name != "llvm":
        return []
    schedule = Schedule(mod, seed=1, debug_mask="none", error_render_level="none")
    blocks = schedule.get_child_blocks(schedule.get_sblock("root", "main"))
    if len(blocks) != 1 or not copies_rows(schedule.get(blocks[0])):
        return []
    *outer, _ = schedule.get_loops(blocks[0])
    rows = schedule.fuse(*outer) if len(outer) > 1 else outer[0]
    if int(target.attrs.get("num-cores", 2)) > 1:
        schedule.parallel(rows)
    return [schedule]


def copies_rows(block: SBlock) -> bool:
    """Return true if a block copies rows of at least :data:`MIN_BYTES` along its last axis."""
    store = block.body
    if not isinstance(store, BufferStore) or not isinstance(store.value, TensorLoad) or len(block.iter_vars) < 2:
        return False
    row = block.iter_vars[-1]
    if any(int(axis.iter_type) != DATA_PARALLEL for axis in block.iter_vars):
        return False

    def along(indices: list[tvm.ir.Expr]) -> bool:
        *before, last = indices
        here = tvm.sym.Analyzer().simplify(last - row.var)
        return not any(row.var.same_as(each) for index in (*before, here) for each in undefined_vars(index))

    size = int(row.dom.extent) * tvm.DataType(str(store.buffer.dtype)).bits // 8
    return size >= MIN_BYTES and along(list(store.indices)) and along(list(store.value.indices))
