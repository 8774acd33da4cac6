"""Our own passes between the passes of TVM's lowering."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm.ir.instrument import pass_instrument

_OF_TVM = ("tirx.", "s_tir.")


def in_stages(lowering: Any, between: Sequence[tuple[str, Callable[[Any], Any]]]) -> Any:
    """Return TVM's lowering of kernels with our passes inserted. ``between``: names of TVM's passes in their order,
    each with our pass that follows it."""
    last = [name for name, _ in between]

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
    def lower(module: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        for stage, (_, ours) in enumerate(between):
            module = ours(_run(lowering, module, context, last, stage))
        return _run(lowering, module, context, last, len(between))

    return lower


def _run(
    lowering: Any, module: tvm.IRModule, context: tvm.transform.PassContext, last: Sequence[str], wanted: int
) -> tvm.IRModule:
    """Return the module after the passes of one stage. ``last``: the last pass of each stage but the final one."""
    stage = 0

    @pass_instrument
    class Chosen:
        def should_run(self, _module: tvm.IRModule, info: Any) -> bool:
            nonlocal stage
            is_wanted = not info.name.startswith(_OF_TVM) or stage == wanted
            stage += info.name in last[stage : stage + 1]
            return is_wanted

    instruments = [*(context.instruments or ()), Chosen()]
    options = (context.opt_level, context.required_pass, context.disabled_pass)
    with tvm.transform.PassContext(*options, instruments=instruments, config=dict(context.config)):
        return lowering(module)
