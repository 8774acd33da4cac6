"""Converters of ONNX operators whose operands are shapes that depend on dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from devices.networks.onnx.shape_values import ShapeValue, ShapeValues, as_expressions, extents_of
from fleet_tune.base.errors import UnsupportedNetworkError

_FAR = 1 << 31
"""Ends of slices from this number on stand for the end of the axis."""


def converted(
    builder: Any, operator: str, inputs: Sequence[Any], attributes: dict[str, Any], known: ShapeValues
) -> Any:
    """Return the Relax expression of an operator; None if it is imported as in networks of fixed shapes."""
    convert = _CONVERTERS.get(operator)
    return None if convert is None else convert(builder, inputs, attributes, known)


def _reshaped(_: Any, inputs: Sequence[Any], attributes: dict[str, Any], known: ShapeValues) -> Any:
    data, shape = inputs[0], known.of(inputs[1])
    extents = extents_of(data)
    if shape is None or extents is None:
        return None
    wanted = list(shape.elements.flat)
    if not attributes.get("allowzero", 0):
        wanted = [extents[at] if _is(each, 0) else each for at, each in enumerate(wanted)]
    return relax.op.reshape(data, wanted)


def _expanded(_: Any, inputs: Sequence[Any], __: dict[str, Any], known: ShapeValues) -> Any:
    data, shape = inputs[0], known.of(inputs[1])
    extents = extents_of(data)
    if shape is None or extents is None:
        return None
    wanted: list[Any] = list(shape.elements.flat)
    rank = max(len(wanted), len(extents))
    result = []
    for own, other in zip(*([1] * (rank - len(each)) + each for each in (extents, wanted)), strict=True):
        if not (_is(own, 1) or _is(other, 1) or known.equal(own, other)):
            return None
        result.append(other if _is(own, 1) else own)
    return relax.op.broadcast_to(data, relax.ShapeExpr(as_expressions(result)))


def _filled(_: Any, inputs: Sequence[Any], attributes: dict[str, Any], known: ShapeValues) -> Any:
    from onnx import numpy_helper

    shape = known.of(inputs[0])
    if shape is None or shape.is_fixed:
        return None
    filling = numpy_helper.to_array(attributes["value"]).reshape(()) if "value" in attributes else None
    constant = relax.const(0.0, "float32") if filling is None else relax.const(filling, filling.dtype.name)
    return relax.op.broadcast_to(constant, relax.ShapeExpr(shape.list()))


def _counted(_: Any, inputs: Sequence[Any], __: dict[str, Any], known: ShapeValues) -> Any:
    values = [known.of(each) for each in inputs]
    if any(value is None for value in values) or all(value.is_fixed for value in values if value is not None):
        return None
    found: list[ShapeValue] = [value for value in values if value is not None]
    start, end, step = (value.elements.reshape(-1)[0] for value in found)
    if not isinstance(step, int):
        return None
    reached = known.holds(start <= end) if step > 0 else known.holds(start >= end)
    return relax.op.arange(start, end, step, found[0].dtype) if reached else None


def _sliced(_: Any, inputs: Sequence[Any], __: dict[str, Any], known: ShapeValues) -> Any:
    data = inputs[0]
    extents = extents_of(data)
    given = [known.of(each) if each is not None else None for each in inputs[1:]]
    unknown = any(value is None for value, each in zip(given, inputs[1:], strict=True) if each is not None)
    starts, ends, axes, steps = (*given, None, None)[:4]
    if extents is None or unknown or starts is None or ends is None:
        return None
    fixed_axes = axes is None or axes.is_fixed
    if not fixed_axes or not (steps is None or steps.is_fixed):
        return None
    places = axes.whole() if axes is not None else list(range(starts.elements.size))
    strides = steps.whole() if steps is not None else [1] * len(places)
    places = [place % len(extents) for place in places]
    fixed = starts.is_fixed and ends.is_fixed and all(isinstance(extents[place], int) for place in places)
    if fixed or any(stride < 1 for stride in strides):
        return None
    begins, limits = [], []
    for place, start, end in zip(places, starts.elements.flat, ends.elements.flat, strict=True):
        begin, limit = (within(known, each, extents[place]) for each in (start, end))
        begins.append(begin)
        limits.append(known.largest(begin, limit))  # a slice that ends before it begins is empty
    begins, limits = as_expressions(begins), as_expressions(limits)
    return relax.op.strided_slice(data, places, begins, limits, as_expressions(strides), assume_inbound=True)


def within(known: ShapeValues, place: Any, extent: Any) -> Any:
    """Return a bound of a slice as a position on the axis, from 0 to its extent. Negative bounds count from the end,
    larger ones are clipped. Raises :class:`UnsupportedNetworkError` if the bound is negative only for some extents of
    the dynamic dimensions."""
    if isinstance(place, int) and place >= _FAR:
        return extent
    if known.holds(place < 0):
        place = place + extent
    elif not known.holds(place >= 0):
        raise UnsupportedNetworkError(
            f"the operator Slice begins or ends at {place} of an axis of {extent}: for some extents that is a place, "
            "for others it counts from the end",
            "give the dimension closer bounds or one extent with --shapes",
        )
    return known.largest(known.least(known.simple(place), extent), 0)


def _is(extent: Any, number: int) -> bool:
    return isinstance(extent, int) and extent == number


_CONVERTERS: dict[str, Callable[[Any, Sequence[Any], dict[str, Any], ShapeValues], Any]] = {
    "Reshape": _reshaped,
    "Expand": _expanded,
    "ConstantOfShape": _filled,
    "Range": _counted,
    "Slice": _sliced,
}
