"""Indices without divisions by a dynamic extent, where they leave none.

    (a * n + b) % n == b,  (a * n + b) // n == a      where 0 <= b < n

Views of tensors with a dynamic axis have such indices, and TVM simplifies them for constant divisors alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.tirx import Add, FloorDiv, FloorMod, Mul, PrimFunc, Var, all, const
from tvm_ffi import structural_map

from devices.sketches.dynamic.rows import dynamic_extents


def simplify_divisions(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose kernels over dynamic extents have no superfluous divisions by these."""
    functions = dict(module.functions.items())
    for variable, function in functions.items():
        extents = dynamic_extents(function) if isinstance(function, PrimFunc) else ()
        if extents:
            body = structural_map(function.body, (SBlock, lambda block, by=extents: _simplified(block, by)))
            functions[variable] = PrimFunc(function.params, body, function.ret_type, function.attrs)
    return tvm.IRModule(functions, module.attrs)


def _simplified(block: SBlock, extents: Sequence[Var]) -> SBlock:
    if not block.iter_vars:
        return block
    analyzer = Analyzer()
    for iteration in block.iter_vars:
        analyzer.bind(iteration.var, iteration.dom)
    replacements = _replacements(extents, analyzer)
    reads, writes, body = (structural_map(part, replacements) for part in (block.reads, block.writes, block.body))
    return SBlock(
        block.iter_vars,
        reads,
        writes,
        block.name_hint,
        body,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )


def without_divisions(index: Any, extents: Sequence[Var], analyzer: Analyzer) -> Any:
    """Return an index without divisions by ``extents`` that ``analyzer``, which knows the bounds of its variables, can
    prove to be superfluous."""
    return analyzer.simplify(structural_map(index, _replacements(extents, analyzer)))


def _replacements(extents: Sequence[Var], analyzer: Analyzer) -> list[tuple[type, Any]]:
    """Return what a division by an extent is replaced by: its quotient or remainder where they are known."""

    def parts(node: Any) -> tuple[Any, Any] | None:
        extent = next((each for each in extents if node.b.same_as(each)), None)
        return None if extent is None else _parts(node.a, extent, analyzer)

    def remainder(node: Any) -> Any:
        found = parts(node)
        return node if found is None else found[1]

    def quotient(node: Any) -> Any:
        found = parts(node)
        return node if found is None else found[0]

    return [(FloorMod, remainder), (FloorDiv, quotient)]


def _parts(value: Any, extent: Var, analyzer: Analyzer) -> tuple[Any, Any] | None:
    """Return ``a`` and ``b`` of ``a * extent + b``, with ``0 <= b < extent``; None where that cannot be shown."""
    times, rest = (const(0, str(value.ty)) for _ in range(2))
    terms = [analyzer.simplify(value)]
    while terms:
        term = terms.pop()
        if isinstance(term, Add):
            terms += [term.a, term.b]
        elif isinstance(term, Mul) and term.b.same_as(extent):
            times = times + term.a
        elif isinstance(term, Mul) and term.a.same_as(extent):
            times = times + term.b
        else:
            rest = rest + term
    rest = analyzer.simplify(rest)
    return (analyzer.simplify(times), rest) if analyzer.can_prove(all(rest >= 0, rest < extent)) else None
