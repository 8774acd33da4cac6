"""Passes over the function ``main`` of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

CallRule = Callable[[relax.BlockBuilder, Call], Any]
"""Rule of an operator: returns the replacement of a call whose operands have been visited, or the call itself to keep
it. The rule may emit bindings before it with the builder."""


def replace_calls(module: Any, rules: Mapping[str, CallRule]) -> Any:
    """Return ``module`` with the calls of operators in ``main`` replaced by the rule of each operator that has one."""
    replaced = with_main_visited(module, _CallReplacer(module, rules))
    return relax.transform.CanonicalizeBindings()(replaced)


def with_main_visited(module: Any, visitor: PyExprMutator) -> Any:
    """Return ``module`` with ``main`` rewritten by the ``visitor``, which was made for the module."""
    main = module.get_global_var("main")
    visitor.builder_.update_func(main, visitor.visit_expr(module[main]))
    return visitor.builder_.get()


def reads(value: Any) -> Iterator[Any]:
    """Yield the variables that a bound value reads, each as often as it is read."""
    if isinstance(value, relax.Var):
        yield value
    elif isinstance(value, Call | relax.Tuple):
        for each in value.args if isinstance(value, Call) else value.fields:
            yield from reads(each)
    else:
        yield from relax.analysis.free_vars(value)


def with_values(function: Any, values: Mapping[Any, Any]) -> Any:
    """Return a function with other values, of the same types, bound to these variables."""
    blocks = [
        type(block)([relax.VarBinding(each.var, values.get(each.var, each.value)) for each in block.bindings])
        for block in function.body.blocks
    ]
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def results_of(main: Any) -> list[Any]:
    """Return what ``main`` returns: the variable of each output."""
    bound = {binding.var: binding.value for block in main.body.blocks for binding in block.bindings}
    returned = main.body.body
    while isinstance(bound.get(returned), relax.Var | relax.Tuple):
        returned = bound[returned]
    return list(returned.fields) if isinstance(returned, relax.Tuple) else [returned]


@mutator
class _CallReplacer(PyExprMutator):  # type: ignore[misc]
    """Replaces calls of operators, each after its operands."""

    def __init__(self, module: Any, rules: Mapping[str, CallRule]) -> None:
        super().__init__(module)
        self._rules = rules

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        rule = self._rules.get(call.op.name) if isinstance(call.op, tvm.ir.Op) else None
        return call if rule is None else rule(self.builder_, call)
