"""Loop transformations that several sketch rules share."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV


def split_open(sch: Schedule, loop: LoopRV, parts: int, limit: int) -> list[LoopRV]:
    """Split a loop into parts whose extents are sampled. The innermost part has at most ``limit`` iterations."""
    return list(sch.split(loop, sch.sample_perfect_tile(loop, n=parts, max_innermost_factor=limit)))


def unroll_and_vectorize(sch: Schedule, loops: Sequence[LoopRV]) -> None:
    """Vectorise the last loop and unroll the others."""
    for loop in loops[:-1]:
        sch.unroll(loop)
    sch.vectorize(loops[-1])
