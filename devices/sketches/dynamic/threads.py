"""Tiles of rows on several threads that do not wait for each other between tiles.

In most cases a tile is one parallel loop. Each thread computes its part of this loop, tile after tile:

    parallel thread in threads:
        for each tile:
            for i in extent * thread // threads .. extent * (thread + 1) // threads

A separate parallel loop for each tile would cost a launch and a wait for the slowest thread each time.
"""

from __future__ import annotations

from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import (
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    IntImm,
    PrimFunc,
    SeqStmt,
    Stmt,
    Var,
    const,
    floordiv,
    floormod,
)
from tvm_ffi import structural_walk

from devices.sketches.plain_weights import LAYOUT_REWRITE


def can_be_shared(tile: PrimFunc, overlaps: bool) -> bool:
    """Return true if threads need not wait for each other within the kernel of a tile, nor between tiles.

    Args:
        tile: a scheduled kernel, or one without a schedule.
        overlaps: true if two tiles may compute the same rows. They may then do so at the same time, so each result must
            be stored only once, in its final value.
    """
    root = tile.body.block if isinstance(tile.body, SBlockRealize) else None
    if root is None or (overlaps and _accumulates(tile)):
        return False
    statements = root.body.seq if isinstance(root.body, SeqStmt) else [root.body]
    computing = [each for each in statements if not _changes_layout(each)]
    inner = [loop for each in computing for loop in _parallel_loops(each)]
    # Several statements depend on each other: one thread can compute them in turn, several threads would have to wait
    # in between.
    return not inner or (len(computing) == 1 and len(inner) == 1 and inner[0].same_as(computing[0]))


def is_serial(tile: PrimFunc) -> bool:
    """Return true for a tile that one thread computes. For such a tile alone, starting other threads would take longer
    than the work."""
    return all(isinstance(loop.extent, IntImm) and int(loop.extent) == 1 for loop in _parallel_loops(tile.body))


def part_of_thread(tile: Stmt, thread: Var, threads: int, step: Var) -> Stmt:
    """Return the part of a tile's statement that a thread computes. ``step``: number of the tile. If a tile has no
    parallel loop, one thread computes all of it; threads take such tiles in turn."""
    dtype = str(thread.ty)
    if isinstance(tile, SBlockRealize):
        block = tile.block
        if isinstance(block.body, For) and block.body.kind == ForKind.PARALLEL:
            inner = part_of_thread(block.body, thread, threads, step)
            part = SBlock([], [], [], block.name_hint, inner, None, block.alloc_buffers, annotations=block.annotations)
            return SBlockRealize([], True, part)
    if isinstance(tile, For) and tile.kind == ForKind.PARALLEL:
        index = str(tile.loop_var.ty)
        first, behind = (floordiv(tile.extent * at.astype(index), threads) for at in (thread, thread + 1))
        return For(
            tile.loop_var, tile.min + first, behind - first, ForKind.SERIAL, tile.body, annotations=tile.annotations
        )
    return IfThenElse(floormod(step, const(threads, dtype)).equal(thread), tile, None)


def _parallel_loops(statement: Stmt) -> list[For]:
    found: list[For] = []
    structural_walk(statement, [(For, lambda loop: found.append(loop) if loop.kind == ForKind.PARALLEL else None)])
    return found


def _changes_layout(statement: Stmt) -> bool:
    while isinstance(statement, For):
        statement = statement.body
    return isinstance(statement, SBlockRealize) and LAYOUT_REWRITE in statement.block.annotations


def _accumulates(tile: PrimFunc) -> bool:
    """Return true if an element of a parameter may be written more than once, as by a sum that is accumulated there.
    True too if a buffer has a second name, through which an instruction may write."""
    found = False

    def visit(block: SBlock) -> None:
        nonlocal found
        stores: list[BufferStore] = []
        structural_walk(block.body, [(BufferStore, stores.append)])
        written = [each for each in stores if any(each.buffer.same_as(parameter) for parameter in tile.params)]
        found |= bool(block.match_buffers) or any(map(_adds_to_its_place, written))

    structural_walk(tile.body, [(SBlock, visit)])
    return found


def _adds_to_its_place(store: BufferStore) -> bool:
    loads: list[TensorLoad] = []
    structural_walk(store.value, (TensorLoad, loads.append))
    return any(each.source.same_as(store.buffer) for each in loads)
