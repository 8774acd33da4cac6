"""The loop order of kernels without a schedule on a CPU.

The last axis of the result becomes the innermost loop, and the reductions enclose it. This axis is contiguous in the
result. If it is contiguous in the inputs too, LLVM vectorises the loop. In an imported kernel a reduction is innermost:
each addition waits for the one before, since floats may not be added in another order. The order of additions to one
element stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm.s_tir import SBlock, Schedule
from tvm.tirx import PrimFunc, Var
from tvm.tirx.analysis import undefined_vars

from devices.sketches.description.accesses import DATA_PARALLEL, REDUCTION, leaf_blocks


def in_contiguous_order(module: Any, *, in_parallel: bool = False) -> Any:
    """Return a module with this loop order in every kernel that has no schedule and reads its inputs along the last
    axis of its result too. Other kernels keep their order: the sums of the rows of a matrix take up to 16 times as long
    in this one, a product with a transposed matrix 9 times. ``in_parallel``: see :func:`with_contiguous_loops`."""
    functions = {
        variable: _ordered(function, in_parallel) if isinstance(function, PrimFunc) else function
        for variable, function in module.functions.items()
    }
    return tvm.IRModule(functions, module.attrs)


def _ordered(kernel: PrimFunc, in_parallel: bool) -> PrimFunc:
    if kernel.attrs is not None and "tirx.is_scheduled" in kernel.attrs:
        return kernel
    try:
        return with_contiguous_loops(kernel, in_parallel=in_parallel, applies=_reads_along)
    except Exception:  # any error of TVM: the kernel stays unchanged
        return kernel


def _reads_along(block: SBlock, axis: Var) -> bool:
    """Return true if ``axis`` occurs only in the last index of each tensor that a block reads."""
    outer = [place.min for read in block.reads for place in list(read.region)[:-1]]
    return not any(axis.same_as(variable) for index in outer for variable in undefined_vars(index))


def with_contiguous_loops(
    kernel: PrimFunc, *, in_parallel: bool, applies: Callable[[SBlock, Var], bool] = lambda _block, _axis: True
) -> PrimFunc:
    """Return a kernel with this loop order. Raises TVM's error if TVM refuses the kernel.

    Args:
        kernel: the kernel.
        in_parallel: true to run the outer axes in parallel.
        applies: takes a reduction block and the last axis of its result, and returns true if the order is to change.
    """
    module = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    schedule = Schedule(module, debug_mask="none", error_render_level="none")
    for name, block in leaf_blocks(kernel).items():
        kinds = [int(each.iter_type) for each in block.iter_vars]
        if set(kinds) <= {DATA_PARALLEL, REDUCTION} and DATA_PARALLEL in kinds:
            last = max(at for at, kind in enumerate(kinds) if kind == DATA_PARALLEL)
            is_reordered = REDUCTION in kinds and applies(block, block.iter_vars[last].var)
            _order_loops(schedule, name, kinds, in_parallel, is_reordered)
    scheduled: PrimFunc = schedule.mod["main"]
    symbol = None if kernel.attrs is None else kernel.attrs.get("global_symbol")
    return scheduled.without_attr("global_symbol") if symbol is None else scheduled.with_attr("global_symbol", symbol)


def _order_loops(schedule: Schedule, name: str, kinds: list[int], in_parallel: bool, is_reordered: bool) -> None:
    block = schedule.get_sblock(name, "main")
    loops: list[Any] = list(schedule.get_loops(block))
    *outer, last = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == DATA_PARALLEL]
    reductions = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == REDUCTION]
    if is_reordered:
        schedule.reorder(*outer, *reductions, last)
    if outer and in_parallel:
        schedule.parallel(schedule.fuse(*outer) if len(outer) > 1 else outer[0])
    if is_reordered:
        schedule.decompose_reduction(block, reductions[0])
