"""Names of a kernel's blocks that depend on the kernel alone.

TVM names some blocks after the network's variables (``lv63_red``), and numbers equal names in the order of the network.
A workload's hash does not depend on names, but schedules find blocks by name. So a record would fit only the network
that it was made with, and no other network with the same kernel.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import For, SeqStmt

_ROOT = "root"
_OF_A_REDUCTION = re.compile(r".*_(red|maximum|minimum|argmax|argmin)")
_OF_A_VARIABLE = re.compile(r"[lg]v\d*_")
_NUMBER = re.compile(r"(_\d+)+$")


def rename_blocks(function: Any) -> Any:
    """Return ``function`` with its blocks named by what they do. Equal names are numbered in program order."""
    names: Counter[str] = Counter()
    body = _renamed(function.body, names)
    return function if body.same_as(function.body) else function.with_body(body)


def stable_name(name: str) -> str:
    """Return ``name`` without its parts that come from a network: ``lv63_red_1`` is ``red``."""
    plain = _NUMBER.sub("", name)
    reduction = _OF_A_REDUCTION.fullmatch(plain)
    return reduction[1] if reduction else _OF_A_VARIABLE.sub("", plain)


def _renamed(statement: Any, names: Counter[str]) -> Any:
    """Return the statement with new names. If nothing changes, return the statement itself."""
    if isinstance(statement, SBlockRealize):
        block = _renamed_block(statement.block, names)
        if not block.same_as(statement.block):
            return SBlockRealize(list(statement.iter_values), statement.predicate, block, statement.span)
    elif isinstance(statement, SeqStmt):
        parts = [_renamed(part, names) for part in statement.seq]
        if not all(new.same_as(old) for new, old in zip(parts, statement.seq, strict=True)):
            return SeqStmt(parts, statement.span)
    elif isinstance(statement, For):
        body = _renamed(statement.body, names)
        if not body.same_as(statement.body):
            loop = statement
            return For(
                loop.loop_var,
                loop.min,
                loop.extent,
                loop.kind,
                body,
                loop.thread_binding,
                loop.annotations,
                loop.step,
                loop.span,
            )
    return statement


def _renamed_block(block: Any, names: Counter[str]) -> Any:
    name = block.name_hint
    if name != _ROOT:
        plain = stable_name(name)
        name = f"{plain}_{names[plain]}" if names[plain] else plain
        names[plain] += 1
    body = _renamed(block.body, names)
    if name == block.name_hint and body.same_as(block.body):
        return block
    return SBlock(
        list(block.iter_vars),
        list(block.reads),
        list(block.writes),
        name,
        body,
        block.init,
        list(block.alloc_buffers),
        list(block.match_buffers),
        block.annotations,
        block.span,
    )
