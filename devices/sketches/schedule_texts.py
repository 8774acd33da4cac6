"""Schedules as text for people: TVM script, and the loop nest alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm.s_tir import SBlockRealize
from tvm.tirx import For, ForKind, IfThenElse, IntImm, SeqStmt, Stmt

from devices.sketches.spaces import apply_trace, parse_module

_INDENT = "  "


@dataclass(frozen=True)
class ScheduleTexts:
    """A scheduled function."""

    script: str
    """The function as TVM script."""
    loops: str
    """The loops and blocks of the function, see :func:`loop_nest`."""


def schedule_texts(workload_module: str, trace: str) -> ScheduleTexts:
    """Return the texts of the function of a workload (:attr:`Workload.module`), scheduled by ``trace``.

    Raises :class:`ScheduleError` if the trace does not fit the program, ValueError for text that this version of TVM
    cannot read.
    """
    function = apply_trace(parse_module(workload_module), trace)["main"]
    return ScheduleTexts(function.script(show_meta=False), loop_nest(function.body))


def loop_nest(statement: Stmt) -> str:
    """Return the loops and blocks of a function as lines of text. Directly nested loops of one kind share a line, with
    their extents from the outermost to the innermost. Each block has a line with the buffers that it writes and reads.
    Loops of one iteration are left out."""
    return "\n".join(_lines(statement, 0))


def _lines(statement: Stmt, depth: int) -> Iterator[str]:
    if isinstance(statement, For):
        loops, body = _same_kind(statement)
        extents = [_extent(loop) for loop in loops]
        several = [extent for extent in extents if extent != "1"]
        if several:
            yield f"{_INDENT * depth}{_kind(statement)} {' × '.join(several)}"
        yield from _lines(body, depth + bool(several))
    elif isinstance(statement, SBlockRealize):
        block = statement.block
        if block.name_hint == "root":
            yield from _lines(block.body, depth)
            return
        writes, reads = ([each.source.name for each in regions] for regions in (block.writes, block.reads))
        from_ = f" from {', '.join(reads)}" if reads else ""
        yield f"{_INDENT * depth}{block.name_hint}: {', '.join(writes)}{from_}"
        yield from _lines(block.body, depth + 1)
    elif isinstance(statement, SeqStmt):
        for each in statement:
            yield from _lines(each, depth)
    elif isinstance(statement, IfThenElse):
        yield f"{_INDENT * depth}if {statement.condition}"
        yield from _lines(statement.then_case, depth + 1)
        if statement.else_case is not None:
            yield f"{_INDENT * depth}else"
            yield from _lines(statement.else_case, depth + 1)
    elif hasattr(statement, "body"):
        yield from _lines(statement.body, depth)


def _same_kind(loop: For) -> tuple[list[For], Stmt]:
    """Return this loop with the loops of its kind directly nested in it, and the body of the last one."""
    loops = [loop]
    while isinstance(loops[-1].body, For) and _kind(loops[-1].body) == _kind(loop):
        loops.append(loops[-1].body)
    return loops, loops[-1].body


def _extent(loop: For) -> str:
    return str(int(loop.extent)) if isinstance(loop.extent, IntImm) else str(loop.extent)


def _kind(loop: For) -> str:
    """Return the kind of a loop in words; for a loop over a GPU's threads, the thread tag."""
    if loop.thread_binding is not None:
        return str(loop.thread_binding.thread_tag)
    return "for" if int(loop.kind) == int(ForKind.SERIAL) else ForKind(int(loop.kind)).name.lower()
