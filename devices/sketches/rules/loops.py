"""Steps on loops that several sketch rules take."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV


def split_open(sch: Schedule, loop: LoopRV, parts: int, limit: int) -> list[LoopRV]:
    """Split a loop into parts whose extents are open, the innermost of at most ``limit`` iterations."""
    return list(sch.split(loop, sch.sample_perfect_tile(loop, n=parts, max_innermost_factor=limit)))


def unroll_and_vectorize(sch: Schedule, loops: Sequence[LoopRV]) -> None:
    """Unroll all loops but the last one, which is vectorised."""
    for loop in loops[:-1]:
        sch.unroll(loop)
    sch.vectorize(loops[-1])
