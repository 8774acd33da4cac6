"""The extents of a network with dynamic dimensions, simplified by the bounds of these dimensions.

For TVM, a slice of the first ``n`` rows of 512 has ``min(n, 512)`` rows, so that TVM cannot find the shape of its sum
with ``n`` other rows. If ``n`` is known to be at most 512, the slice has ``n`` rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import Call, Range
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

from devices.sketches.dynamic.joined_extents import factors
from fleet_tune.base.errors import UnsupportedNetworkError
from fleet_tune.base.shapes.dimensions import Dimension

_LOWER, _UPPER = "tir_var_lower_bound", "tir_var_upper_bound"


def dynamic_variables(function: Any) -> dict[str, Any]:
    """Return the symbolic variables in the shapes of a Relax function's parameters, by name."""
    found: dict[str, Any] = {}
    for parameter in function.params:
        for extent in getattr(parameter.ty.shape, "values", ()) if isinstance(parameter.ty, relax.TensorType) else ():
            if isinstance(extent, tirx.Var):
                found[str(extent.name)] = extent
    return found


def known(extent: Any) -> int:
    """Return an extent as a number. It is 1 for a dynamic extent: quantities that are compared grow with it alike."""
    return extent if isinstance(extent, int) else int(getattr(extent, "value", 1))


def not_over_dynamic(operator: str) -> UnsupportedNetworkError:
    """Return the error for an operator that needs numbers for the extents of its tensors."""
    return UnsupportedNetworkError(
        f"the operator {operator} cannot be compiled over a dynamic dimension",
        "give the dimension one extent: --shapes NAME=EXTENT",
    )


def numbers(operator: str, extents: Sequence[Any]) -> list[int]:
    """Return the extents of a tensor of TVM or torch. Raises UnsupportedNetworkError if one is dynamic."""
    if not all(isinstance(extent, tirx.IntImm | int) for extent in extents):
        raise not_over_dynamic(operator)
    return [int(extent) for extent in extents]


def is_long(extent: Any) -> bool:
    """Return true if an axis of this extent can be longer than one."""
    return not isinstance(extent, tirx.IntImm | int) or int(extent) > 1


def has_known_shape(kind: Any, dynamic: Sequence[Any]) -> bool:
    """Return true if all extents of a Relax type's tensors are numbers or follow from the variables ``dynamic``. True
    also for types that hold no tensor."""
    if isinstance(kind, relax.TupleType):
        return all(has_known_shape(field, dynamic) for field in kind.fields)
    if not isinstance(kind, relax.TensorType):
        return True
    if not isinstance(kind.shape, relax.ShapeExpr):
        return False
    read = (each for extent in kind.shape.values for each in undefined_vars(extent))
    return all(any(each.same_as(variable) for variable in dynamic) for each in read)


def bounds(function: Any) -> dict[str, tuple[int, int]]:
    """Return the least and the largest extent of each dynamic dimension, from the function's attributes."""
    attributes = function.attrs or {}
    if _LOWER not in attributes or _UPPER not in attributes:
        return {}
    least, most = attributes[_LOWER], attributes[_UPPER]
    return {str(name): (int(least[name]), int(most[name])) for name in most}


def largest_value(extent: Any, dimensions: Sequence[Dimension]) -> int | None:
    """Return the largest value of an expression whose variables have the names of these dimensions, or of products of
    them. None if it has other variables."""
    bounds = {each.name: each for each in dimensions}
    analyzer = Analyzer()
    for variable in undefined_vars(extent):
        joined = [bounds.get(name) for name in factors(str(variable.name))]
        known = [each for each in joined if each is not None]
        if len(known) < len(joined):
            return None
        analyzer.bind(variable, _range(variable, prod(each.least for each in known), prod(each.most for each in known)))
    return int(analyzer.const_int_bound(extent).max_value)


def bound_analyzer(function: Any) -> Analyzer:
    """Return an analyzer that knows the bounds of a function's dynamic dimensions."""
    analyzer = Analyzer()
    limits = bounds(function)
    for name, variable in dynamic_variables(function).items():
        least, most = limits[name]
        analyzer.bind(variable, _range(variable, least, most))
    return analyzer


def simplify_extents(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with the shapes in ``main`` simplified by the bounds of its dynamic dimensions."""
    main = module["main"]
    analyzer = bound_analyzer(main)
    changed = tvm.IRModule(dict(module.functions.items()), module.attrs)
    changed.update_func(module.get_global_var("main"), _Simplifier(changed, analyzer).visit_expr(main))
    return relax.transform.Normalize()(changed)


def _range(variable: Any, least: int, most: int) -> Range:
    return Range(tirx.const(least, str(variable.ty)), tirx.const(most + 1, str(variable.ty)))


@mutator
class _Simplifier(PyExprMutator):  # type: ignore[misc]
    def __init__(self, module: Any, analyzer: Any) -> None:
        super().__init__(module)
        self._analyzer = analyzer

    def visit_shape_expr_(self, shape: Any) -> Any:
        return relax.ShapeExpr([self._analyzer.simplify(extent) for extent in shape.values])

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.strided_slice":
            return self._inbound(call)
        return call

    def _inbound(self, call: Call) -> Any:
        """Return the slice marked as one that TVM need not clip, if its ends provably lie within its tensor."""
        data, axes, begin, end, *strides = call.args
        shape = data.ty.shape
        backwards = any(not self._analyzer.can_prove(step > 0) for each in strides for step in each.fields)
        if call.attrs.assume_inbound or backwards or not isinstance(shape, relax.ShapeExpr):
            return call
        for axis, first, last in zip(*(part.fields for part in (axes, begin, end)), strict=True):
            extent = shape.values[int(axis)]
            if not self._analyzer.can_prove(tirx.all(first >= 0, first <= last, last <= extent)):
                return call
        return relax.op.strided_slice(data, axes, begin, end, *strides, assume_inbound=True)
