"""The schedule of kernels over a dynamic extent that have no rows: attention over as many keys as there are, softmax
along the tokens.

Nothing is searched for them. The outer axes of each block run in parallel, and the last one is innermost, around it the
reductions: it is contiguous in the result, and mostly in what is read, so that LLVM makes vectors of it. For a few
places, waking the other threads would take longer than the work: there is a branch without them.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm.s_tir import SBlock, SBlockRealize, Schedule, renew_defs
from tvm.tirx import IfThenElse, PrimFunc, Stmt, const

from devices.sketches.description.accesses import DATA_PARALLEL, REDUCTION, leaf_blocks
from devices.sketches.dynamic.rows import dynamic_extents, tensors
from devices.sketches.dynamic.substitution import on_tensors

FEW = 16
"""Places below which a kernel runs on one thread. Four heads of attention among 16 tokens take as long as a call into
the pool, some microseconds."""


def default_schedule(kernel: PrimFunc) -> PrimFunc:
    """Return a kernel with this schedule; as it is where TVM refuses it."""
    try:
        scheduled = _scheduled(kernel, in_parallel=True)
        extents = dynamic_extents(kernel)
        if extents:
            few = prod(extents) < const(FEW, str(extents[0].ty))
            alone = _body(_scheduled(kernel, in_parallel=False), kernel)
            branches = IfThenElse(few, alone, _body(scheduled, kernel))
            root = SBlock([], [], [], "root", branches)
            scheduled = PrimFunc(kernel.params, SBlockRealize([], True, root), kernel.ret_type, kernel.attrs)
    except (tvm.s_tir.ScheduleError, ValueError, RuntimeError):
        return kernel
    return scheduled.with_attr("tirx.is_scheduled", True)


def _scheduled(kernel: PrimFunc, in_parallel: bool) -> PrimFunc:
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    schedule = Schedule(module, debug_mask="none", error_render_level="none")
    for name, block in leaf_blocks(kernel).items():
        kinds = [int(each.iter_type) for each in block.iter_vars]
        if set(kinds) <= {DATA_PARALLEL, REDUCTION} and DATA_PARALLEL in kinds:
            _schedule(schedule, name, kinds, in_parallel)
    return schedule.mod["main"].without_attr("global_symbol")


def _schedule(schedule: Schedule, name: str, kinds: list[int], in_parallel: bool) -> None:
    block = schedule.get_sblock(name, "main")
    loops: list[Any] = list(schedule.get_loops(block))
    *outer, last = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == DATA_PARALLEL]
    reductions = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == REDUCTION]
    if reductions:
        schedule.reorder(*outer, *reductions, last)
    if outer and in_parallel:
        schedule.parallel(schedule.fuse(*outer) if len(outer) > 1 else outer[0])
    if reductions:
        schedule.decompose_reduction(block, reductions[0])


def _body(scheduled: PrimFunc, kernel: PrimFunc) -> Stmt:
    """Return the body of a scheduled kernel on the parameters of ``kernel``, with no variable in common with another
    branch."""
    renewed = renew_defs(scheduled)
    own = dynamic_extents(renewed)
    generic = PrimFunc([*own, *tensors(renewed)], renewed.body, renewed.ret_type, renewed.attrs)
    bound = generic.specialize(dict(zip(own, dynamic_extents(kernel), strict=True)))
    return on_tensors(bound.body, dict(zip(bound.params, tensors(kernel), strict=True)))
