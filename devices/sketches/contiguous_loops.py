"""The loop order of kernels that have no schedule of their own on a CPU.

The last axis of the result is innermost, around it the reductions. It is contiguous in the result, and mostly in what
is read, so that LLVM makes vectors of it. As imported, a reduction is innermost: each addition waits for the one
before, since floats may not be added in another order. The order of additions to one element stays the same.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from devices.sketches.description.accesses import DATA_PARALLEL, REDUCTION, leaf_blocks


def in_contiguous_order(module: Any, *, in_parallel: bool = False) -> Any:
    """Return a module with this loop order in every kernel that has no schedule. ``in_parallel``: see
    :func:`with_contiguous_loops`."""
    functions = {
        variable: _ordered(function, in_parallel) if isinstance(function, PrimFunc) else function
        for variable, function in module.functions.items()
    }
    return tvm.IRModule(functions, module.attrs)


def _ordered(kernel: PrimFunc, in_parallel: bool) -> PrimFunc:
    if kernel.attrs is not None and "tirx.is_scheduled" in kernel.attrs:
        return kernel
    try:
        return with_contiguous_loops(kernel, in_parallel=in_parallel)
    except Exception:  # whatever TVM raises: the kernel runs as it is
        return kernel


def with_contiguous_loops(kernel: PrimFunc, *, in_parallel: bool) -> PrimFunc:
    """Return a kernel with this loop order; ``in_parallel``: the outer axes run in parallel. Raises what TVM does where
    it refuses the kernel."""
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    schedule = Schedule(module, debug_mask="none", error_render_level="none")
    for name, block in leaf_blocks(kernel).items():
        kinds = [int(each.iter_type) for each in block.iter_vars]
        if set(kinds) <= {DATA_PARALLEL, REDUCTION} and DATA_PARALLEL in kinds:
            _order_loops(schedule, name, kinds, in_parallel)
    scheduled: PrimFunc = schedule.mod["main"]
    symbol = None if kernel.attrs is None else kernel.attrs.get("global_symbol")
    return scheduled.without_attr("global_symbol") if symbol is None else scheduled.with_attr("global_symbol", symbol)


def _order_loops(schedule: Schedule, name: str, kinds: list[int], in_parallel: bool) -> None:
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
