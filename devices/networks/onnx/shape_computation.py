"""ONNX operators on small integer tensors that are computed from shapes: their results in terms of the dynamic
dimensions.

Numpy computes them, on arrays of integers and expressions (see :mod:`devices.networks.onnx.shape_values`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import helper
from tvm import tirx

from devices.networks.onnx.shape_values import (
    FOLLOWED,
    MOST,
    ShapeValue,
    ShapeValues,
    UnknownError,
    as_expressions,
    extents_of,
)

_Compute = Callable[[ShapeValues, Sequence[Any], dict[str, Any]], ShapeValue]


def computed(known: ShapeValues, operator: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> ShapeValue | None:
    """Return the value of an operator's result, if it is known in terms of the dynamic dimensions."""
    try:
        if operator in ("Shape", "Size"):
            return _shape(known, operator, inputs[0], attributes)
        compute = _OPERATORS.get(operator)
        values = [None if each is None else known.of(each) for each in inputs]
        if compute is None or any(v is None for v, each in zip(values, inputs, strict=True) if each is not None):
            return None
        value = compute(known, values, attributes)
    except UnknownError:
        return None
    return value if value.elements.size <= MOST else None


def _shape(known: ShapeValues, operator: str, data: Any, attributes: dict[str, Any]) -> ShapeValue | None:
    value = known.of(data)
    extents = list(value.elements.shape) if value is not None else extents_of(data)
    if extents is None:
        return None
    extents = [known.simple(extent) for extent in extents]
    if operator == "Size":
        return ShapeValue(_as_array(known.simple(math.prod(extents))), "int64")
    return ShapeValue(_row(extents[attributes.get("start", 0) : attributes.get("end", len(extents))]), "int64")


def _row(elements: Sequence[Any]) -> npt.NDArray[np.object_]:
    row = np.empty(len(elements), object)
    for at, each in enumerate(elements):
        row[at] = each
    return row


def _elementwise(values: Sequence[ShapeValue], compute: Callable[..., Any]) -> npt.NDArray[np.object_]:
    arrays = np.broadcast_arrays(*(value.elements for value in values))
    result = np.empty(arrays[0].shape, object)
    for at in np.ndindex(result.shape):
        result[at] = compute(*(array[at] for array in arrays))
    return result


def _arithmetic(compute: Callable[[ShapeValues, Any, Any], Any]) -> _Compute:
    def result(known: ShapeValues, values: Sequence[Any], _: dict[str, Any]) -> ShapeValue:
        first: ShapeValue
        first, *others = values
        for other in others:  # Min and Max have any number of operands
            pair = (first, other)
            first = ShapeValue(_elementwise(pair, lambda x, y: known.simple(compute(known, x, y))), first.dtype)
        return first

    return result


def _compared(compare: Callable[[Any, Any], Any], opposite: Callable[[Any, Any], Any]) -> _Compute:
    def decided(known: ShapeValues, left: Any, right: Any) -> bool:
        if isinstance(left, int) and isinstance(right, int):
            return bool(compare(left, right))
        left, right = as_expressions((left, right))
        if known.holds(compare(left, right)):
            return True
        if known.holds(opposite(left, right)):
            return False
        raise UnknownError

    def result(known: ShapeValues, values: Sequence[Any], _: dict[str, Any]) -> ShapeValue:
        return ShapeValue(_elementwise(values, lambda x, y: decided(known, x, y)), "bool")

    return result


def _quotient(known: ShapeValues, left: Any, right: Any) -> Any:
    """Divide a number that is not negative by a positive one. (ONNX rounds to zero, expressions round down.)"""
    if not (known.holds(left >= 0) and known.holds(right > 0)):
        raise UnknownError
    return left // right if isinstance(left, int) and isinstance(right, int) else tirx.floordiv(left, right)


def _rest(known: ShapeValues, left: Any, right: Any) -> Any:
    if not (known.holds(left >= 0) and known.holds(right > 0)):
        raise UnknownError
    return left % right if isinstance(left, int) and isinstance(right, int) else tirx.floormod(left, right)


def _cast(_: ShapeValues, values: Sequence[Any], attributes: dict[str, Any]) -> ShapeValue:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(attributes["to"]))
    if dtype.name not in FOLLOWED or (dtype.name == "bool" and not values[0].is_fixed):
        raise UnknownError
    convert = bool if dtype.name == "bool" else int
    return ShapeValue(_elementwise(values, lambda x: convert(x) if isinstance(x, int) else x), dtype.name)


def _gathered(_: ShapeValues, values: Sequence[Any], attributes: dict[str, Any]) -> ShapeValue:
    data, indices = values
    places = np.asarray(indices.whole(), np.int64).reshape(indices.elements.shape)
    return ShapeValue(_as_array(np.take(data.elements, places, axis=attributes.get("axis", 0))), data.dtype)


def _sliced(_: ShapeValues, values: Sequence[Any], __: dict[str, Any]) -> ShapeValue:
    data, starts, ends, *rest = values
    axes = rest[0].whole() if rest and rest[0] is not None else list(range(len(starts.whole())))
    steps = rest[1].whole() if len(rest) > 1 and rest[1] is not None else [1] * len(axes)
    elements = data.elements
    for axis, start, end, step in zip(axes, starts.whole(), ends.whole(), steps, strict=True):
        index: list[Any] = [slice(None)] * elements.ndim
        stop = None if step < 0 and end < -elements.shape[axis] else end
        index[axis] = slice(start, stop, step)
        elements = elements[tuple(index)]
    return ShapeValue(elements, data.dtype)


def _joined(_: ShapeValues, values: Sequence[Any], attributes: dict[str, Any]) -> ShapeValue:
    return ShapeValue(np.concatenate([each.elements for each in values], axis=attributes["axis"]), values[0].dtype)


def _axes(values: Sequence[Any], attributes: dict[str, Any]) -> tuple[int, ...] | None:
    if len(values) > 1 and values[1] is not None:
        return tuple(values[1].whole())
    return tuple(attributes["axes"]) if "axes" in attributes else None


def _squeezed(_: ShapeValues, values: Sequence[Any], attributes: dict[str, Any]) -> ShapeValue:
    return ShapeValue(_as_array(np.squeeze(values[0].elements, _axes(values, attributes))), values[0].dtype)


def _unsqueezed(_: ShapeValues, values: Sequence[Any], attributes: dict[str, Any]) -> ShapeValue:
    return ShapeValue(np.expand_dims(values[0].elements, _axes(values, attributes) or ()), values[0].dtype)


def _reshaped(_: ShapeValues, values: Sequence[Any], attributes: dict[str, Any]) -> ShapeValue:
    data, shape = values[0].elements, values[1].whole()
    if not attributes.get("allowzero", 0):
        shape = [data.shape[at] if extent == 0 else extent for at, extent in enumerate(shape)]
    return ShapeValue(data.reshape(shape), values[0].dtype)


def _filled(_: ShapeValues, values: Sequence[Any], attributes: dict[str, Any]) -> ShapeValue:
    from onnx import numpy_helper

    filling = numpy_helper.to_array(attributes["value"]) if "value" in attributes else np.zeros(1, np.float32)
    shape = values[0].whole()
    if filling.dtype.name not in FOLLOWED or math.prod(shape) > MOST:
        raise UnknownError
    return ShapeValue(np.full(shape, filling.item(), object), filling.dtype.name)


def _expanded(_: ShapeValues, values: Sequence[Any], __: dict[str, Any]) -> ShapeValue:
    shape = np.broadcast_shapes(values[0].elements.shape, tuple(values[1].whole()))
    if math.prod(shape) > MOST:
        raise UnknownError
    return ShapeValue(np.broadcast_to(values[0].elements, shape), values[0].dtype)


def _chosen(_: ShapeValues, values: Sequence[Any], __: dict[str, Any]) -> ShapeValue:
    condition, left, right = values
    condition.whole()
    return ShapeValue(_elementwise((condition, left, right), lambda c, x, y: x if c else y), left.dtype)


def _multiplied(known: ShapeValues, values: Sequence[Any], attributes: dict[str, Any]) -> ShapeValue:
    data = values[0].elements
    if data.ndim != 1 or _axes(values, attributes) not in (None, (0,), (-1,)):
        raise UnknownError
    product = _as_array(known.simple(math.prod(data)))
    return ShapeValue(product.reshape(1) if attributes.get("keepdims", 1) else product, values[0].dtype)


def _as_array(element: Any) -> npt.NDArray[np.object_]:
    """Return an array. For no dimensions, numpy returns the element itself, which is wrapped again."""
    if isinstance(element, np.ndarray):
        return element
    array = np.empty((), object)
    array[()] = element
    return array


_OPERATORS: dict[str, _Compute] = {
    "Add": _arithmetic(lambda _, x, y: x + y),
    "Sub": _arithmetic(lambda _, x, y: x - y),
    "Mul": _arithmetic(lambda _, x, y: x * y),
    "Div": _arithmetic(_quotient),
    "Mod": _arithmetic(_rest),
    "Min": _arithmetic(lambda known, x, y: known.least(x, y)),
    "Max": _arithmetic(lambda known, x, y: known.largest(x, y)),
    "Neg": lambda known, values, _: ShapeValue(_elementwise(values, lambda x: known.simple(-x)), values[0].dtype),
    "Equal": _compared(lambda x, y: x == y, lambda x, y: x != y),
    "Less": _compared(lambda x, y: x < y, lambda x, y: x >= y),
    "LessOrEqual": _compared(lambda x, y: x <= y, lambda x, y: x > y),
    "Greater": _compared(lambda x, y: x > y, lambda x, y: x <= y),
    "GreaterOrEqual": _compared(lambda x, y: x >= y, lambda x, y: x < y),
    "Not": lambda _, values, __: ShapeValue(_elementwise(values, lambda x: not x), "bool"),
    "And": lambda _, values, __: ShapeValue(_elementwise(values, lambda x, y: bool(x and y)), "bool"),
    "Or": lambda _, values, __: ShapeValue(_elementwise(values, lambda x, y: bool(x or y)), "bool"),
    "Where": _chosen,
    "Identity": lambda _, values, __: values[0],
    "Cast": _cast,
    "Gather": _gathered,
    "Slice": _sliced,
    "Concat": _joined,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "Reshape": _reshaped,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "ReduceProd": _multiplied,
}
