"""Folding of additions and multiplications by constants into the convolution or product before them.

    (conv(x, w) + b) * c    ->    conv(x, w * c) + b * c

Likewise for ``-``, ``+`` and ``/``, and for products with a constant matrix. Batch norms leave such operators. The
constants may only vary over the output channels, and nothing else may read the values in between.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst

from devices.builds.tensors import array_of
from devices.networks.graph.ir.calls import constant
from devices.networks.graph.ir.tensors import Array, extents_of, have_one_shape, shape_of
from devices.networks.graph.rewrites.context import RewriteContext, Rule

_CONVOLUTIONS = frozenset(f"relax.nn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose"))


def fold_affine(context: RewriteContext, call: Call) -> Any:
    """Fold a constant operand into the weights or the bias of a convolution or product."""
    if not context.used_once(context.original.args):
        return call
    name = call.op.name
    left, right = (context.known(argument) for argument in call.args)
    if isinstance(right, GenericConst) and not isinstance(left, GenericConst):
        value, operand = left, array_of(right.value)
    elif isinstance(left, GenericConst) and name in ("relax.add", "relax.multiply"):
        value, operand = right, array_of(left.value)
    else:
        return call
    if not have_one_shape(value, call) or operand.dtype.kind != "f":
        return call
    linear, bias = _linear_and_bias(context, value)
    if linear is None:
        return call
    channel_axis, output_axis = _channel_axes(linear)
    channels = _per_channel(operand, extents_of(value) or (), channel_axis)
    if channels is None:
        return call
    rank = value.ty.ndim
    if name in ("relax.add", "relax.subtract"):
        if bias is None and name == "relax.add":  # already the folded form
            return call
        added = channels if name == "relax.add" else -channels
        total = added if bias is None else bias + added
        return relax.op.add(context.emit(linear), constant(_spread(total, rank, channel_axis)))
    factor = channels if name == "relax.multiply" else np.asarray(1 / channels, channels.dtype)
    weight = array_of(context.known(linear.args[1]).value)
    spread = _spread(factor, weight.ndim, output_axis)
    scaled = (weight * spread).astype(weight.dtype)
    if not np.isfinite(scaled.astype(np.float32)).all():  # too large for the weights' type
        return call
    if weight.dtype.itemsize == 2 and not _are_exact(scaled, weight.astype(np.float64) * spread, output_axis):
        return call
    result = Call(linear.op, [linear.args[0], constant(scaled)], linear.attrs, linear.ty_args)
    if bias is None:
        return result
    return relax.op.add(context.emit(result), constant(_spread(bias * factor, rank, channel_axis)))


def _linear_and_bias(context: RewriteContext, value: Any) -> tuple[Any, Array | None]:
    """Return the convolution or product with constant weights in ``value``, and the constant per channel that is added
    to it (None if there is none). (None, None) for any other value."""
    if not isinstance(value, Call) or not isinstance(value.op, tvm.ir.Op):
        return None, None
    if value.op.name in _CONVOLUTIONS:
        constant_weight = isinstance(context.known(value.args[1]), GenericConst)
        if value.op.name.endswith("_transpose") and int(value.attrs.groups) > 1:
            return None, None  # its weights only have one group's output channels
        return (value, None) if constant_weight else (None, None)
    if value.op.name == "relax.matmul":
        weight = context.known(value.args[1])
        plain = isinstance(weight, GenericConst) and len(shape_of(weight) or ()) == 2
        return (value, None) if plain else (None, None)
    if value.op.name != "relax.add" or not context.used_once(value.args):
        return None, None
    left, right = (context.known(argument) for argument in value.args)
    linear, bias = (left, right) if isinstance(right, GenericConst) else (right, left)
    if not isinstance(bias, GenericConst) or _linear_and_bias(context, linear)[0] is not linear:
        return None, None
    channel_axis, _ = _channel_axes(linear)
    channels = _per_channel(array_of(bias.value), extents_of(linear) or (), channel_axis)
    return (linear, channels) if channels is not None else (None, None)


def _channel_axes(linear: Call) -> tuple[int, int]:
    """Return the axes of the output channels, in the result and in the weights."""
    if linear.op.name == "relax.matmul":
        return linear.ty.ndim - 1, 1
    return str(linear.attrs.out_layout).find("C"), str(linear.attrs.kernel_layout).find("O")


def _per_channel(array: Array, shape: tuple[Any, ...], axis: int) -> Array | None:
    """Return ``array`` as a vector over the channels; None if it varies over another axis, or the number of channels is
    not known."""
    if array.ndim > len(shape) or axis < 0 or not isinstance(shape[axis], int):
        return None
    padded = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if any(extent != 1 for at, extent in enumerate(padded.shape) if at != axis):
        return None
    return np.array(np.broadcast_to(padded.reshape(-1), (shape[axis],)))


def _are_exact(rounded: Array, exact: Array, axis: int) -> bool:
    """Return true if the rounded weights of each channel of ``axis`` are about as accurate as their type allows. (A few
    weights that are too small for the type do not matter.)"""
    others = tuple(at for at in range(exact.ndim) if at != axis)
    off = np.square(rounded.astype(np.float64) - exact).sum(others)
    eps = float(ml_dtypes.finfo(rounded.dtype).eps)  # type: ignore[no-untyped-call]
    return bool((off <= np.square(eps) * np.square(exact).sum(others)).all())


def _spread(vector: Array, rank: int, axis: int) -> Array:
    """Return ``vector`` along ``axis`` of ``rank`` axes."""
    return vector.reshape(tuple(-1 if at == axis else 1 for at in range(rank)))


AFFINE_RULES: dict[str, Rule] = dict.fromkeys(
    ("relax.add", "relax.subtract", "relax.multiply", "relax.divide"), fold_affine
)
