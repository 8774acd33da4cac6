"""Indices without divisions by a dynamic extent, where they leave none.

    (a * n + b) % n == b,  (a * n + b) // n == a      where 0 <= b < n

Views of tensors with a dynamic axis have such indices, and TVM simplifies them for constant divisors alone.
"""

from __future__ import annotations

from typing import Any

from tvm.sym import Analyzer
from tvm.tirx import Add, FloorDiv, FloorMod, Mul, Var, all
from tvm_ffi import structural_map


def without_divisions(index: Any, extent: Var, analyzer: Analyzer) -> Any:
    """Return an index without divisions by ``extent`` that ``analyzer``, which knows the bounds of its variables, can
    prove to be superfluous."""

    def remainder(node: Any) -> Any:
        parts = _parts(node.a, extent, analyzer) if node.b.same_as(extent) else None
        return node if parts is None else parts[1]

    def quotient(node: Any) -> Any:
        parts = _parts(node.a, extent, analyzer) if node.b.same_as(extent) else None
        return node if parts is None else parts[0]

    return analyzer.simplify(structural_map(analyzer.simplify(index), [(FloorMod, remainder), (FloorDiv, quotient)]))


def _parts(value: Any, extent: Var, analyzer: Analyzer) -> tuple[Any, Any] | None:
    """Return ``a`` and ``b`` of ``a * extent + b``, with ``0 <= b < extent``; None where that cannot be shown."""
    zero = value - value
    times, rest = zero, zero
    terms = [value]
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
    return (times, rest) if analyzer.can_prove(all(rest >= 0, rest < extent)) else None
