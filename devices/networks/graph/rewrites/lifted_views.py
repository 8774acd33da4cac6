"""Moves reshapes after a product to before it.

Some exporters and optimisers write a product of ``(1, 128, 768)`` with a matrix as one of ``(128, 768)``, between two
reshapes. Nothing is fused across the second reshape: the operators after it become a kernel of their own. Before a
product, a reshape is a view, which costs nothing, and often cancels with the first reshape.

    reshape(f(x @ w), (..., n))    ->    f(reshape(x, (..., k)) @ w)

for a matrix ``w`` of constants, a reshape that does not change the last axis, and element-wise operators ``f`` whose
other operands are constants along the last axis, or single numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from devices.builds.tensors import array_of
from devices.networks.graph.ir.calls import constant, operator_name
from devices.networks.graph.ir.main_function import with_main_visited
from devices.networks.graph.ir.tensors import shape_of

_ELEMENT_WISE = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "clip", "round", "astype", "negative"),
        *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "sigmoid", "tanh", "erf", "sqrt", "exp"),
    )
)


def lift_views(module: Any) -> Any:
    """Return ``module`` with the reshapes of this module's docstring moved. Remaining reshapes of moved values change
    nothing."""
    shapes = _new_shapes(module["main"])
    return with_main_visited(module, _ViewLifter(module, shapes)) if shapes else module


def _new_shapes(main: Any) -> dict[Any, tuple[int, ...]]:
    """Return the new shapes of the values that change, by their variables."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    bound = {binding.var: binding.value for binding in bindings}
    readers: Counter[Any] = Counter(relax.analysis.free_vars(main.body.body))
    for binding in bindings:
        readers.update(relax.analysis.free_vars(binding.value))
    shapes: dict[Any, tuple[int, ...]] = {}
    for binding in bindings:
        shape = shape_of(binding.var)
        if operator_name(binding.value) != "relax.reshape" or not shape or binding.value.args[0] in shapes:
            continue
        chain = _Chain(bound, readers, shape[:-1])
        for each in chain.of(binding.value.args[0], shape[-1]):
            shapes[each] = (*shape[:-1], (shape_of(each) or ())[-1])
    return shapes


@dataclass(frozen=True)
class _Chain:
    """The operators from a product to a value that is computed from it, and the operators before the product."""

    bound: Mapping[Any, Any]
    readers: Mapping[Any, int]
    leading: tuple[int, ...]
    """New extents of all axes but the last."""

    def of(self, value: Any, last: int) -> list[Any]:
        """Return the variables from a product to ``value``. Add the variables before the product, back to a reshape
        that the new shape makes superfluous, if there is one. Empty if ``value`` is not computed from a product, or its
        last axis is not ``last``."""
        after, product = self._back(value, last)
        call: Any = self.bound.get(product)
        if operator_name(call) != "relax.matmul" or not isinstance(call.args[1], GenericConst):
            return []
        if len(shape_of(call.args[1]) or ()) != 2 or not isinstance(call.args[0], relax.Var):
            return []
        shape = (*self.leading, (shape_of(call.args[0]) or (0,))[-1])
        before, first = self._back(call.args[0], shape[-1])
        call = self.bound.get(first)
        is_undone = first in before and operator_name(call) == "relax.reshape" and shape_of(call.args[0]) == shape
        return [*after, *before] if is_undone else after

    def _back(self, value: Any, last: int) -> tuple[list[Any], Any]:
        """Return the chain of variables that ``value`` is computed from element by element, each read once, including
        itself. Return also the last of the chain, the source."""
        chain: list[Any] = []
        while isinstance(value, relax.Var) and self.readers[value] == 1 and (shape_of(value) or (0,))[-1] == last:
            chain.append(value)
            call: Any = self.bound.get(value)
            if operator_name(call) not in _ELEMENT_WISE:
                return chain, value
            tensors = [each for each in call.args if shape_of(each) is not None]
            others = [each for each in tensors if isinstance(each, relax.Var) and shape_of(each)]
            if len(others) != 1 or not all(each in others or _is_along_last_axis(each) for each in tensors):
                return chain, None
            (value,) = others
        return chain, None


def _is_along_last_axis(operand: Any) -> bool:
    shape = shape_of(operand)
    return shape is not None and all(extent == 1 for extent in shape[:-1])


@mutator
class _ViewLifter(PyExprMutator):  # type: ignore[misc]
    """Rewrites values in their new shapes."""

    def __init__(self, module: Any, shapes: Mapping[Any, tuple[int, ...]]) -> None:
        super().__init__(module)
        self._shapes = shapes

    def visit_var_binding_(self, binding: Any) -> None:
        shape = self._shapes.get(binding.var)
        if shape is None:
            super().visit_var_binding_(binding)
            return
        self.set_var_remap(binding.var, self._moved(binding.value, shape))

    def _moved(self, call: Call, shape: tuple[int, ...]) -> Any:
        """Return the result of a call in its new shape."""
        name = operator_name(call)
        if name == "relax.reshape":
            return self.visit_expr(call.args[0])
        arguments = [self._operand(each, len(shape)) for each in call.args]
        if name == "relax.matmul" and call.args[0] not in self._shapes:
            terms = (shape_of(call.args[0]) or ())[-1]
            arguments[0] = self.builder_.emit(relax.op.reshape(arguments[0], (*shape[:-1], terms)))
        return self.builder_.emit(Call(call.op, arguments, call.attrs, call.ty_args))

    def _operand(self, operand: Any, rank: int) -> Any:
        """Return an operand of an element-wise operator in a form that fits values of ``rank`` axes."""
        if not isinstance(operand, GenericConst) or len(shape_of(operand) or ()) <= rank:
            return self.visit_expr(operand)
        return constant(array_of(operand.value).reshape(-1))
