"""The schedule of kernels over a dynamic extent that have no independent rows, such as a product of queries with all
keys, or a softmax along the tokens.

These kernels are not tuned. Their loops are in the order of :mod:`devices.sketches.contiguous_loops`, and the outer
loops run in parallel. If the extents are small, waking other threads would take longer than the work, so the kernel has
a second branch that runs on one thread.
"""

from __future__ import annotations

from math import prod

import tvm
from tvm.s_tir import SBlock, SBlockRealize, renew_defs
from tvm.tirx import IfThenElse, PrimFunc, Stmt, const

from devices.sketches.contiguous_loops import with_contiguous_loops
from devices.sketches.dynamic.rows import dynamic_extents, tensors
from devices.sketches.dynamic.substitution import on_tensors

FEW = 16
"""Product of the dynamic extents below which a kernel runs on one thread. Four heads of attention among 16 tokens take
as long as a call into the thread pool, some microseconds."""


def default_schedule(kernel: PrimFunc) -> PrimFunc:
    """Return a kernel with this schedule; unchanged if TVM refuses it."""
    try:
        scheduled = with_contiguous_loops(kernel, in_parallel=True)
        extents = dynamic_extents(kernel)
        if extents:
            few = prod(extents) < const(FEW, str(extents[0].ty))
            alone = _body(with_contiguous_loops(kernel, in_parallel=False), kernel)
            branches = IfThenElse(few, alone, _body(scheduled, kernel))
            root = SBlock([], [], [], "root", branches)
            scheduled = PrimFunc(kernel.params, SBlockRealize([], True, root), kernel.ret_type, kernel.attrs)
    except (tvm.s_tir.ScheduleError, ValueError, RuntimeError):
        return kernel
    return scheduled.with_attr("tirx.is_scheduled", True)


def _body(scheduled: PrimFunc, kernel: PrimFunc) -> Stmt:
    """Return the body of a scheduled kernel on the parameters of ``kernel``. Its variables are new, so that two
    branches share none."""
    renewed = renew_defs(scheduled)
    own = dynamic_extents(renewed)
    generic = PrimFunc([*own, *tensors(renewed)], renewed.body, renewed.ret_type, renewed.attrs)
    bound = generic.specialize(dict(zip(own, dynamic_extents(kernel), strict=True)))
    return on_tensors(bound.body, dict(zip(bound.params, tensors(kernel), strict=True)))
