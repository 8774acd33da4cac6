"""Attention over a dynamic number of rows or columns, in one kernel."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import IfThenElse, PrimFunc, Stmt

from devices.sketches.dynamic.attention_extents import AttentionExtents
from devices.sketches.dynamic.few_row_attention import FewRows, few_rows_fit
from devices.sketches.dynamic.many_row_attention import AttentionTiles, ManyRows
from devices.sketches.rules.attention.pattern import Attention
from devices.sketches.rules.attention.rule import MIN_ROWS

_FEW_PRODUCTS = 1 << 16
"""Number of products that take as long as a call into the thread pool, some microseconds. Up to so many are computed by
one thread."""


def dynamic_attention(kernel: PrimFunc, tiles: AttentionTiles, threads: int) -> PrimFunc | None:
    """Return the scheduled kernel of an attention over a dynamic number of rows or columns; None for other kernels.

    Args:
        kernel: the unscheduled kernel.
        tiles: tiles of the program for many rows.
        threads: number of threads that run the kernel.
    """
    extents = AttentionExtents.of(kernel)
    if extents is None:
        return None
    root = SBlock([], [], [], "root", _body(extents.attention, tiles, threads))
    scheduled = PrimFunc(kernel.params, SBlockRealize([], True, root), kernel.ret_type, kernel.attrs)
    return scheduled.with_attr("tirx.is_scheduled", True)


def _body(attention: Attention, tiles: AttentionTiles, threads: int) -> Stmt:
    """Return the program for few rows, the program for many rows, or both with a branch on the number of rows."""
    rows = attention.rows
    is_one_row = isinstance(rows, int) and all(isinstance(each, int) and each == 1 for each in attention.batch)
    threads = 1 if is_one_row else threads

    def few(alone: bool) -> Stmt:
        return FewRows(attention, 1 if alone else threads).body()

    def many(alone: bool) -> Stmt:
        return ManyRows(attention, AttentionTiles() if alone else tiles, in_parallel=not alone).body()

    if not few_rows_fit(rows if isinstance(rows, int) else None, attention.terms, attention.width):
        return _by_work(attention, threads, many)
    if isinstance(rows, int):
        return _by_work(attention, threads, few)
    return IfThenElse(rows < MIN_ROWS, *(_by_work(attention, threads, program) for program in (few, many)))


def _by_work(attention: Attention, threads: int, program: Callable[[bool], Stmt]) -> Stmt:
    """Return a program with a branch for little work, which runs on one thread. ``program``: takes true for that
    branch."""
    if threads == 1:
        return program(False)
    known = prod(each for each in attention.batch if isinstance(each, int)) * (attention.terms + attention.width)
    samples = prod(each for each in attention.batch if not isinstance(each, int))
    is_little = samples * attention.rows * attention.columns <= _FEW_PRODUCTS // known
    return IfThenElse(is_little, program(True), program(False))
