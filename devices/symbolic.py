"""From a trace to the symbolic statements of :mod:`fleet_tune.sketch`."""

from __future__ import annotations

import tvm
from tvm.s_tir import Trace
from tvm.target import Target

from fleet_tune.sketch import Statement


def describe(module: tvm.IRModule, trace: Trace, target: Target) -> tuple[tuple[Statement, ...], str]:
    """Statements of the sketch (the main one first), or none and the reason."""
    return (
        (),
        f"traces for {target.kind.name} are not described yet ({len(trace.insts)} instructions, {len(module.functions)} functions)",
    )
