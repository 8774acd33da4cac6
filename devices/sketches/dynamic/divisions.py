"""Indices without divisions by a dynamic extent, where they leave none.

    (a * n + b) % n == b,  (a * n + b) // n == a      where 0 <= b < n

Views of tensors with a dynamic axis have such indices, and TVM simplifies them for constant divisors alone. ``n`` is
any extent with a variable that it has once: a cache of ``past`` tokens grows to ``past + 1``.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.tirx import Add, FloorDiv, FloorMod, IntImm, Mul, PrimFunc, Var, all, const
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_map

from devices.sketches.dynamic.rows import is_dynamic


def simplify_divisions(module: tvm.IRModule) -> tvm.IRModule:
    """Return a module whose kernels over dynamic extents have no superfluous divisions by them."""
    functions = dict(module.functions.items())
    for variable, function in functions.items():
        if is_dynamic(function):
            body = structural_map(function.body, (SBlock, _simplified))
            functions[variable] = PrimFunc(function.params, body, function.ret_type, function.attrs)
    return tvm.IRModule(functions, module.attrs)


def _simplified(block: SBlock) -> SBlock:
    if not block.iter_vars:
        return block
    analyzer = Analyzer()
    for iteration in block.iter_vars:
        analyzer.bind(iteration.var, iteration.dom)
    replacements = _replacements(analyzer)
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


def without_divisions(index: Any, analyzer: Analyzer) -> Any:
    """Return an index without divisions by dynamic extents that ``analyzer``, which knows the bounds of its variables,
    can prove to be superfluous."""
    return analyzer.simplify(structural_map(index, _replacements(analyzer)))


def _replacements(analyzer: Analyzer) -> list[tuple[type, Any]]:
    """Return what a division by a dynamic extent is replaced by: its quotient or remainder where they are known."""

    def remainder(node: Any) -> Any:
        parts = _parts(node.a, node.b, analyzer)
        return node if parts is None else parts[1]

    def quotient(node: Any) -> Any:
        parts = _parts(node.a, node.b, analyzer)
        return node if parts is None else parts[0]

    return [(FloorMod, remainder), (FloorDiv, quotient)]


def _parts(value: Any, extent: Any, analyzer: Analyzer) -> tuple[Any, Any] | None:
    """Return ``a`` and ``b`` of ``a * extent + b``, with ``0 <= b < extent``; None where that cannot be shown."""
    variable = _variable_of(extent, analyzer)
    if variable is None:
        return None
    # The extent becomes a variable, so that its multiples are products with it.
    whole = Var("whole", str(extent.ty))
    others = analyzer.simplify(extent - variable)
    times, rest = (const(0, str(value.ty)) for _ in range(2))
    terms = [analyzer.simplify(_with(value, variable, whole - others))]
    while terms:
        term = terms.pop()
        factor = _factor(term, whole)
        if isinstance(term, Add):
            terms += [term.a, term.b]
        elif factor is not None:
            times = times + factor
        else:
            rest = rest + term
    times, rest = (analyzer.simplify(_with(each, whole, extent)) for each in (times, rest))
    return (times, rest) if analyzer.can_prove(all(rest >= 0, rest < extent)) else None


def _variable_of(extent: Any, analyzer: Analyzer) -> Var | None:
    """Return a variable that is a term of an extent; None where there is none."""
    variables = [] if isinstance(extent, IntImm) else list(undefined_vars(extent))
    if any(hasattr(each.ty, "shape") for each in variables):  # an element of a tensor
        return None
    for variable in variables:
        if not any(each.same_as(variable) for each in undefined_vars(analyzer.simplify(extent - variable))):
            return variable
    return None


def _factor(term: Any, whole: Var) -> Any | None:
    """Return ``a`` of ``a * whole``."""
    if not isinstance(term, Mul):
        return None
    for one, other in ((term.a, term.b), (term.b, term.a)):
        if one.same_as(whole):
            return other
        factor = _factor(one, whole)
        if factor is not None:
            return factor * other
    return None


def _with(expression: Any, variable: Var, value: Any) -> Any:
    return structural_map(expression, (Var, lambda each: value if each.same_as(variable) else each))
