"""A design space of ours that is one schedule, or none: what all of its rules do alike."""

from __future__ import annotations

from collections.abc import Callable

from tvm import IRModule
from tvm.s_tir import Schedule
from tvm.target import Target


def one_sketch(mod: IRModule, target: Target, rule: Callable[[Schedule, Target], bool]) -> list[Schedule]:
    """The schedule that ``rule`` makes of ``mod`` for a CPU; none for other targets, where the rule says False, and
    where TVM's primitives refuse the program, which other sketches serve."""
    if target.kind.name != "llvm":
        return []
    try:
        schedule = Schedule(mod, seed=1, debug_mask="none", error_render_level="none")
        return [schedule] if rule(schedule, target) else []
    except (RuntimeError, ValueError):
        return []
