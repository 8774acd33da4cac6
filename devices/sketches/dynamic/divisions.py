"""Removal of divisions by a dynamic extent from indices, if quotient and remainder are known.

    (a * n + b) % n == b,  (a * n + b) // n == a      if 0 <= b < n

Views of tensors with a dynamic axis have such indices, and TVM simplifies them only for constant divisors. ``n`` may be
any extent that contains some variable exactly once as a term: a cache of ``past`` tokens grows to ``past + 1``.
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
    """Return a module whose kernels over dynamic extents have no redundant divisions by them."""
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
    """Return an index without redundant divisions by dynamic extents. ``analyzer`` knows the bounds of the variables,
    and proves which divisions are redundant."""
    return analyzer.simplify(structural_map(index, _replacements(analyzer)))


def _replacements(analyzer: Analyzer) -> list[tuple[type, Any]]:
    """Return the replacements of divisions by dynamic extents, as node types and functions: a quotient or remainder
    that is known replaces its division."""

    def remainder(node: Any) -> Any:
        parts = _parts(node.a, node.b, analyzer)
        return node if parts is None else parts[1]

    def quotient(node: Any) -> Any:
        parts = _parts(node.a, node.b, analyzer)
        return node if parts is None else parts[0]

    return [(FloorMod, remainder), (FloorDiv, quotient)]


def _parts(value: Any, extent: Any, analyzer: Analyzer) -> tuple[Any, Any] | None:
    """Return ``a`` and ``b`` such that ``value`` is ``a * extent + b`` with ``0 <= b < extent``; None if none can be
    proved."""
    variable = _variable_of(extent, analyzer)
    if variable is None:
        return None
    # The extent is replaced by one variable, so that multiples of it become products with this variable.
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
    """Return a variable that occurs in an extent exactly once, as a term; None if there is none."""
    variables = [] if isinstance(extent, IntImm) else list(undefined_vars(extent))
    if any(hasattr(each.ty, "shape") for each in variables):  # an element of a tensor
        return None
    for variable in variables:
        if not any(each.same_as(variable) for each in undefined_vars(analyzer.simplify(extent - variable))):
            return variable
    return None


def _factor(term: Any, whole: Var) -> Any | None:
    """Return ``a`` if a term is ``a * whole``; None for another term."""
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
