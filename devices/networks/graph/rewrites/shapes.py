"""Transposes, reshapes and conversions that cancel each other or change nothing."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import Call, GenericConst

from devices.networks.graph.ir.calls import is_call, operator_name
from devices.networks.graph.ir.tensors import axes_of, ints, shape_of
from devices.networks.graph.rewrites.context import RewriteContext, Rule

_HALVES = ("float16", "bfloat16")
_PRODUCTS = frozenset({"relax.matmul", *(f"relax.nn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose"))})


def _permute(context: RewriteContext, call: Call) -> Any:
    """Merge a transpose with the one before it. A transpose that moves only axes of one element becomes a reshape."""
    argument = call.args[0]
    shape = shape_of(argument)
    if shape is None:
        return call
    axes = axes_of(call.attrs, len(shape))
    producer = context.known(argument)
    if is_call(producer, "relax.permute_dims"):
        inner = axes_of(producer.attrs, len(shape))
        argument, axes = producer.args[0], tuple(inner[axis] for axis in axes)
        shape = shape_of(argument) or shape
    if axes == tuple(range(len(axes))):
        return argument
    moved = [axis for axis in axes if shape[axis] != 1]
    if moved == sorted(moved):
        return relax.op.reshape(argument, tuple(shape[axis] for axis in axes))
    return relax.op.permute_dims(argument, list(axes))


def _reshape(context: RewriteContext, call: Call) -> Any:
    """Drop a reshape or broadcast that changes nothing, and merge a reshape with the one before it."""
    shape, before = shape_of(context.original), shape_of(call.args[0])
    if shape is None or before is None:
        return call
    if shape == before:
        return call.args[0]
    producer = context.known(call.args[0])
    if is_call(call, "relax.reshape") and is_call(producer, "relax.reshape"):
        source = producer.args[0]
        return source if shape_of(source) == shape else relax.op.reshape(source, shape)
    return call


def _convert(context: RewriteContext, call: Call) -> Any:
    """Drop the rounding of float32 sums of half-precision products if they are converted back to float32. Any other
    rounding stays, as the network asks for it."""
    producer = context.known(call.args[0])
    if not is_call(producer, "relax.astype"):
        return call
    sums = producer.args[0]
    widened_again = str(sums.ty.dtype) == str(call.ty.dtype) == "float32" and str(producer.ty.dtype) in _HALVES
    return sums if widened_again and _are_of_halves(context, sums) else call


def _are_of_halves(context: RewriteContext, value: Any) -> bool:
    """Return true for the sums of a product of half precision, with or without a bias, also in another shape."""
    found = context.known(value)
    while operator_name(found) in ("relax.reshape", "relax.permute_dims") or _is_biased(context, found):
        found = context.known(found.args[0])
    return operator_name(found) in _PRODUCTS and str(found.args[0].ty.dtype) in _HALVES


def _is_biased(context: RewriteContext, value: Any) -> bool:
    return is_call(value, "relax.add") and isinstance(context.known(value.args[1]), GenericConst)


def _squeeze(_context: RewriteContext, call: Call) -> Any:
    """Count axes from the front: TVM's rules for layouts read negative ones as sizes."""
    rank = call.args[0].ty.ndim
    if rank < 0 or call.attrs.axis is None or min(ints(call.attrs.axis), default=0) >= 0:
        return call
    return relax.op.squeeze(call.args[0], [axis % rank for axis in ints(call.attrs.axis)])


SHAPE_RULES: dict[str, Rule] = {
    "relax.permute_dims": _permute,
    "relax.reshape": _reshape,
    "relax.broadcast_to": _reshape,
    "relax.astype": _convert,
    "relax.squeeze": _squeeze,
}
