"""Small integer tensors of an ONNX graph that are computed from shapes, in terms of the dynamic dimensions.

Exporters compute shapes within the graph: ``Reshape(x, Concat(Shape(y)[0:1], [64]))``. For dynamic dimensions, TVM's
importer follows few of these operators. For other results it makes a new variable, whose value is known only when the
network runs. :mod:`devices.networks.onnx.shape_computation` computes all of them with integers and expressions of the
dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import ir, relax, tirx
from tvm.sym import Analyzer

from fleet_tune.base.shapes.dimensions import Dimension

MOST = 64
"""Most elements of a tensor that is followed."""

FOLLOWED = ("int32", "int64", "bool")


class UnknownError(Exception):
    """A value is not known before the network runs, or is not followed."""


@dataclass(frozen=True)
class ShapeValue:
    """A tensor of integers or booleans."""

    elements: npt.NDArray[np.object_]
    """Integers, booleans and TVM's expressions."""
    dtype: str

    @property
    def is_fixed(self) -> bool:
        """True if no element depends on a dynamic dimension."""
        return all(isinstance(each, int) for each in self.elements.flat)

    def whole(self) -> list[int]:
        """Return the elements, flattened. Raises :class:`UnknownError` if one depends on a dynamic dimension."""
        if not self.is_fixed:
            raise UnknownError
        return [int(each) for each in self.elements.flat]

    def list(self) -> list[Any]:
        """Return the elements, flattened, as TVM takes them."""
        return as_expressions(list(self.elements.flat))


class ShapeValues:
    """The values of a graph that are known in terms of its dynamic dimensions."""

    def __init__(self, dynamic: Sequence[Dimension]) -> None:
        self._dynamic = {each.name: each for each in dynamic}
        self._analyzer = Analyzer()
        self._known: dict[int, tuple[Any, ShapeValue]] = {}

    def bind(self, parameters: Sequence[Any]) -> None:
        """Declare the variables in the shapes of these Relax variables as the dynamic dimensions of the same names."""
        found: list[Any] = []
        for parameter in parameters:
            for extent in parameter.ty.shape.values:
                if isinstance(extent, tirx.Var) and not any(extent.same_as(each) for each in found):
                    found.append(extent)
                    bounds = self._dynamic[str(extent.name)]
                    first, count = (tirx.IntImm("int64", n) for n in (bounds.least, bounds.most - bounds.least + 1))
                    self._analyzer.bind(extent, ir.Range.from_min_extent(first, count))

    def of(self, expression: Any) -> ShapeValue | None:
        """Return the value of a Relax expression, if it is known."""
        if hash(expression) in self._known:
            return self._known[hash(expression)][1]
        if not isinstance(expression, ir.GenericConst):
            return None
        array = expression.value.numpy()
        if array.dtype.name not in FOLLOWED or array.size > MOST:
            return None
        return ShapeValue(array.astype(object), array.dtype.name)

    def keep(self, expression: Any, value: ShapeValue) -> None:
        """Record that a Relax expression has this value."""
        self._known[hash(expression)] = (expression, value)  # keeping the expression keeps its address in use

    def simple(self, expression: Any) -> Any:
        """Return an extent in its simplest form: an integer if it is one."""
        if isinstance(expression, int | np.integer | np.bool_):
            return int(expression)
        simplified = self._analyzer.simplify(expression)
        return int(simplified) if isinstance(simplified, tirx.IntImm) else simplified

    def holds(self, condition: Any) -> bool:
        """Return true if a condition holds for all extents of the dynamic dimensions."""
        return bool(condition) if isinstance(condition, bool) else bool(self._analyzer.can_prove(condition))

    def equal(self, left: Any, right: Any) -> bool:
        """Return true if two extents are equal for all extents of the dynamic dimensions."""
        difference = self.simple(left - right)
        return isinstance(difference, int) and difference == 0

    def least(self, left: Any, right: Any) -> Any:
        """Return the smaller of two extents."""
        if isinstance(left, int) and isinstance(right, int):
            return min(left, right)
        return self.simple(tirx.min(left, right))

    def largest(self, left: Any, right: Any) -> Any:
        """Return the larger of two extents."""
        if isinstance(left, int) and isinstance(right, int):
            return max(left, right)
        return self.simple(tirx.max(left, right))


def as_expressions(extents: Sequence[Any]) -> list[Any]:
    """Return extents as TVM takes them."""
    return [tirx.IntImm("int64", each) if isinstance(each, int) else each for each in extents]


def extents_of(data: Any) -> list[Any] | None:
    """Return the extents of a Relax tensor, as integers if possible. None if they are not known."""
    shape = getattr(data.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return [int(extent) if isinstance(extent, tirx.IntImm) else extent for extent in shape.values]


def expression_of(builder: Any, value: ShapeValue) -> Any:
    """Return a value as a Relax tensor."""
    shape = value.elements.shape
    if value.is_fixed:
        return relax.const(np.asarray(value.whole(), value.dtype).reshape(shape), value.dtype)
    tensor = builder.emit(relax.op.shape_to_tensor(relax.ShapeExpr(value.list())))
    if len(shape) != 1:
        tensor = builder.emit(relax.op.reshape(tensor, shape))
    return tensor if value.dtype == "int64" else builder.emit(relax.op.astype(tensor, value.dtype))
