"""The schedule of kernels over a dynamic extent that have no rows: attention over as many keys as there are, softmax
along the tokens.

Nothing is searched for them. Their loops are in the order of :mod:`devices.sketches.contiguous_loops`, the outer ones
in parallel. For a few places, waking the other threads would take longer than the work: there is a branch without them.
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
"""Places below which a kernel runs on one thread. Four heads of attention among 16 tokens take as long as a call into
the pool, some microseconds."""


def default_schedule(kernel: PrimFunc) -> PrimFunc:
    """Return a kernel with this schedule; as it is where TVM refuses it."""
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
    """Return the body of a scheduled kernel on the parameters of ``kernel``, with no variable in common with another
    branch."""
    renewed = renew_defs(scheduled)
    own = dynamic_extents(renewed)
    generic = PrimFunc([*own, *tensors(renewed)], renewed.body, renewed.ret_type, renewed.attrs)
    bound = generic.specialize(dict(zip(own, dynamic_extents(kernel), strict=True)))
    return on_tensors(bound.body, dict(zip(bound.params, tensors(kernel), strict=True)))
