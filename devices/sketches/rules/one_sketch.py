"""Application of a rule that makes one schedule of a program, or none."""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule
from tvm.s_tir import Schedule
from tvm.target import Target


def one_sketch(mod: IRModule, target: Target, rule: Callable[[Schedule, Target], bool]) -> list[Schedule]:
    """Return the schedule that ``rule`` makes of ``mod`` for a CPU; none for other targets, where the rule returns
    false, and where TVM's primitives refuse the program (other sketches serve it)."""
    if target.kind.name != "llvm":
        return []
    try:
        schedule = Schedule(mod, seed=1, debug_mask="none", error_render_level="none")
        return [schedule] if rule(schedule, target) else []
    except (RuntimeError, ValueError):
        return []
