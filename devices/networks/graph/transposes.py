"""Transposes move behind element-wise operators, where they meet others and vanish.

    f(transpose(x), transpose(y), constant)    ->    transpose(f(x, y, constant'))

Convolutions that have channels last leave a transpose wherever a value is read in the original layout. A residual sum
of values that all come from such transposes, as in ConvNeXt, needs none.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import array_of
from devices.networks.graph.layouts import moved_bytes
from devices.networks.graph.main_function import with_main_visited
from devices.networks.graph.numpy_operators import shape_of
from devices.networks.graph.rewrites.context import constant, is_call, operator_name
from devices.networks.graph.rewrites.rewriter import rewrite

_ELEMENT_WISE = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "negative", "astype"),
        *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.leakyrelu", "sigmoid", "tanh", "erf", "sqrt", "exp"),
    )
)


def fold_transposes(module: Any) -> Any:
    """Return ``module`` rewritten, with its transposes moved where that leaves fewer bytes to move."""
    plain = rewrite(module)
    moved = rewrite(relax.transform.Normalize()(with_main_visited(plain, _TransposeMover(plain))))
    return min(plain, moved, key=lambda each: moved_bytes(each["main"]))


@mutator
class _TransposeMover(PyExprMutator):  # type: ignore[misc]
    """Writes element-wise operators of transposed values as transposes of element-wise operators."""

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if operator_name(call) not in _ELEMENT_WISE:
            return call
        variables = [each for each in call.args if isinstance(each, relax.Var)]
        orders = {found[1] for each in variables if (found := self._source(each)) is not None}
        if len(orders) != 1 or any(self._source(each) is None for each in variables):
            return call
        (axes,) = orders
        if any(shape_of(each) != shape_of(call) for each in variables):
            return call
        order = [axes.index(at) for at in range(len(axes))]
        arguments = [self._argument(each, order) for each in call.args]
        result = self.builder_.emit(Call(call.op, arguments, call.attrs, call.ty_args))
        return relax.op.permute_dims(result, list(axes))

    def _source(self, variable: Any) -> tuple[Any, tuple[int, ...]] | None:
        """Return what a variable is the transpose of, and its axes; None where it is none."""
        value = self.lookup_binding(variable)
        if not is_call(value, "relax.permute_dims") or not isinstance(value.args[0], relax.Var):
            return None
        return value.args[0], tuple(int(axis) for axis in value.attrs.axes)

    def _argument(self, argument: Any, order: list[int]) -> Any:
        if isinstance(argument, relax.Var):
            found = self._source(argument)
            assert found is not None
            return found[0]
        if isinstance(argument, GenericConst) and shape_of(argument):
            array = array_of(argument.value)
            return constant(array.reshape((1,) * (len(order) - array.ndim) + array.shape).transpose(order))
        return argument
