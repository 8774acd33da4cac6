"""One form for the extents that a group of operators takes.

A group of operators takes as arguments the extents that none of its tensors has. Such an argument is a number if an
operator reads it, and a part of a shape if it is only an extent of a result. TVM's fusion fails on a group that has
both, such as ``past`` and ``tokens`` in ``arange(tokens) + past``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import Call, PrimType
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.networks.graph.ir.main_function import with_main_visited


def join_group_extents(module: Any) -> Any:
    """Return ``module`` with changed groups: a group that takes extents in both forms takes all of them as parts of one
    shape."""
    found: dict[Any, _Group] = {}
    builder = relax.BlockBuilder(module)
    for variable, function in module.functions.items():
        if not isinstance(function, relax.Function) or "Primitive" not in (function.attrs or {}):
            continue
        *parameters, last = function.params or [None]
        numbers = [at for at, each in enumerate(parameters) if isinstance(each.ty, PrimType)]
        if numbers and isinstance(last.ty, relax.ShapeType):
            extents = [*(parameters[at] for at in numbers), *last.ty.values]
            kept = [each for at, each in enumerate(parameters) if at not in numbers]
            joined = [*kept, relax.Var(last.name, relax.ShapeType(extents))]
            function = relax.Function(joined, function.body, function.ret_ty, function.is_pure, function.attrs)
            found[variable] = _Group(builder.add_func(function, variable.name_hint), numbers)
    if not found:
        return module
    return with_main_visited(builder.get(), _Caller(builder.get(), found))


@dataclass(frozen=True)
class _Group:
    """A group in its new form."""

    function: Any
    numbers: Sequence[int]
    """Indices of the arguments that were extents as numbers."""


@mutator
class _Caller(PyExprMutator):  # type: ignore[misc]
    """Calls groups in their new form."""

    def __init__(self, module: Any, groups: Mapping[Any, _Group]) -> None:
        super().__init__(module)
        self._groups = groups

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        group = self._groups.get(call.op)
        if group is None:
            return call
        *given, last = call.args
        extents = relax.ShapeExpr([*(given[at] for at in group.numbers), *last.values])
        kept = [each for at, each in enumerate(given) if at not in group.numbers]
        return Call(group.function, [*kept, extents], call.attrs)
