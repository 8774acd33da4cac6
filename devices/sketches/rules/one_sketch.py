"""Application of a sketch rule that makes at most one schedule of a program."""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule
from tvm.s_tir import Schedule
from tvm.target import Target


def one_sketch(mod: IRModule, target: Target, rule: Callable[[Schedule, Target], bool]) -> list[Schedule]:
    """Return the schedule that ``rule`` makes of ``mod`` for a CPU. The list is empty for other targets, if the rule
    returns false, and if TVM's primitives refuse the program, for which there are other sketches."""
    if target.kind.name != "llvm":
        return []
    try:
        schedule = Schedule(mod, seed=1, debug_mask="none", error_render_level="none")
        return [schedule] if rule(schedule, target) else []
    except (RuntimeError, ValueError):
        return []
