"""Uniform values over dynamic dimensions, which are one number everywhere: operators read the number instead.

    scores + where(arange(n) >= 0, 0, -inf)    ->    scores + 0

Encoders that are exported without a mask have such masks. With fixed shapes they are constants, and folded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import Call, GenericConst
from tvm.sym import Analyzer

from devices.builds.tensors import array_of
from devices.networks.graph.ir.calls import operator_name
from devices.networks.graph.ir.dynamic_extents import bound_analyzer
from devices.networks.graph.ir.main_function import replace_calls

Number = bool | int | float
Interval = tuple[int, int]
"""The least and the largest value of integers."""

_VIEWS = frozenset(
    f"relax.{name}" for name in ("broadcast_to", "expand_dims", "reshape", "squeeze", "permute_dims", "flatten")
)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "relax.greater": operator.gt,
    "relax.greater_equal": operator.ge,
    "relax.less": operator.lt,
    "relax.less_equal": operator.le,
}
_ELEMENT_WISE = ("relax.add", "relax.subtract", "relax.multiply", "relax.divide")


def replace_uniform_values(module: Any) -> Any:
    """Return ``module`` with the operands of element-wise operators in ``main`` that are one number everywhere replaced
    by the number. The other operand must have the shape of the result."""
    analyzer = bound_analyzer(module["main"])

    def rule(builder: relax.BlockBuilder, call: Call) -> Any:
        values = _Values(builder, analyzer)
        for at in (1, 0):
            other, value = call.args[1 - at], call.args[at]
            if isinstance(value, GenericConst) or not _have_one_shape(other, call, analyzer):
                continue
            number = values.number(value)
            if number is not None:
                scalar = relax.const(np.asarray(number, str(value.ty.dtype)), str(value.ty.dtype))
                return Call(call.op, [other, scalar] if at else [scalar, other], call.attrs)
        return call

    return replace_calls(module, dict.fromkeys(_ELEMENT_WISE, rule))


class _Values:
    """Numbers and intervals of the values of a function.

    Args:
        builder: has their bindings.
        analyzer: knows the bounds of the dynamic dimensions.
    """

    def __init__(self, builder: relax.BlockBuilder, analyzer: Analyzer) -> None:
        self._builder = builder
        self._analyzer = analyzer

    def number(self, value: Any) -> Number | None:
        """Return the number that a value is everywhere. None if it is not known to be one number."""
        value = self._bound(value)
        if isinstance(value, GenericConst):
            array = array_of(value.value)
            return array.reshape(-1)[0].item() if array.size == 1 else None
        name = operator_name(value)
        if name in _VIEWS:
            return self.number(value.args[0])
        if name == "relax.where":
            condition = self.number(value.args[0])
            return None if condition is None else self.number(value.args[1 if condition else 2])
        if name in _COMPARISONS:
            return self._compared(_COMPARISONS[name], *value.args)
        return None

    def _compared(self, compare: Callable[[Any, Any], Any], left: Any, right: Any) -> bool | None:
        first, second = self._interval(left), self._interval(right)
        if first is None or second is None:
            return None
        found = {bool(compare(a, b)) for a in first for b in second}
        return found.pop() if len(found) == 1 else None

    def _interval(self, value: Any) -> Interval | None:
        """Return the least and the largest of a tensor's integers. None if they are not known."""
        value = self._bound(value)
        if isinstance(value, GenericConst):
            array = array_of(value.value)
            is_known = array.size and np.issubdtype(array.dtype, np.integer)
            return (int(array.min()), int(array.max())) if is_known else None
        name = operator_name(value)
        if name in _VIEWS:
            return self._interval(value.args[0])
        if name == "relax.arange":
            return self._counted(*value.args)
        if name in ("relax.add", "relax.subtract"):
            left, right = map(self._interval, value.args)
            if left is None or right is None:
                return None
            (least, most), (low, high) = left, right
            return (least + low, most + high) if name == "relax.add" else (least - high, most - low)
        return None

    def _counted(self, start: Any, end: Any, step: Any) -> Interval | None:
        """Return the interval of ``arange``. The range may be empty; then the result of a comparison does not
        matter."""
        if not isinstance(step, tirx.IntImm) or int(step) < 1:
            return None
        least, most = (self._analyzer.const_int_bound(each) for each in (start, end))
        return int(least.min_value), max(int(most.max_value) - 1, int(least.min_value))

    def _bound(self, value: Any) -> Any:
        while isinstance(value, relax.Var):
            value = self._builder.lookup_binding(value)
        return value


def _have_one_shape(value: Any, call: Call, analyzer: Analyzer) -> bool:
    first, second = (getattr(each.ty, "shape", None) for each in (value, call))
    if not isinstance(first, relax.ShapeExpr) or not isinstance(second, relax.ShapeExpr):
        return False
    return len(first.values) == len(second.values) and all(
        analyzer.can_prove_equal(a, b) for a, b in zip(first.values, second.values, strict=True)
    )
