"""Operators of Relax that are lowered to TensorIR in our own form instead of TVM's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst
from tvm.tirx import Select, const, rsqrt

from devices.networks.graph.ir.dynamic_extents import numbers
from devices.networks.graph.legalization import float_order
from devices.networks.graph.legalization.concatenations import legalize_concatenation
from devices.networks.graph.legalization.image_convolutions import legalize_convolution
from devices.networks.graph.legalization.regions import adaptive_regions
from devices.networks.graph.legalization.row_writes import written_rows
from devices.networks.graph.legalization.scatters import attributes_of_elements, scatter_elements


def softmax(x: te.Tensor, axis: int) -> te.Tensor:
    """Return a softmax that multiplies by the reciprocal of a row's sum.

    TVM divides each element by the sum. The reciprocal is the same for the whole row, a product with it differs by one
    rounding, and a division takes several times as long.
    """
    axis %= len(x.shape)
    rows = [extent for at, extent in enumerate(x.shape) if at != axis]

    def along(place: tuple[Any, ...], at: Any) -> tuple[Any, ...]:
        return (*place[:axis], at, *place[axis:])

    def row_of(place: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*place[:axis], *place[axis + 1 :])

    k = te.reduce_axis((0, x.shape[axis]), name="k")
    largest = te.compute(rows, lambda *row: te.max(x[along(row, k)], axis=k), name="T_softmax_maxelem")
    powers = te.compute(x.shape, lambda *at: te.exp(x[at] - largest[row_of(at)]), name="T_softmax_exp")
    k = te.reduce_axis((0, x.shape[axis]), name="k")
    total = te.compute(rows, lambda *row: te.sum(powers[along(row, k)], axis=k), name="T_softmax_expsum")
    one = const(1.0, x.dtype)
    return te.compute(x.shape, lambda *at: powers[at] * (one / total[row_of(at)]), name="T_softmax_norm")


def group_norm(x: te.Tensor, weight: te.Tensor, bias: te.Tensor, groups: int, epsilon: float) -> te.Tensor:
    """Return a group norm of ``(n, channels, ...)`` that computes on the axes of ``x``.

    TVM's group norm reshapes its input and its output, element by element. It computes the variance from the mean of
    squares, which suffers from cancellation if the mean is large.
    """
    count, channels, *places = x.shape
    each = channels // groups  # and all extents of the same type of integers
    groups = channels // each
    size = prod(numbers("group_norm", (each, *places)))

    def axes() -> list[Any]:
        return [te.reduce_axis((0, extent), name="k") for extent in (each, *places)]

    def value(n: Any, channel: Any, *place: Any) -> Any:
        return x[(n, channel, *place)].astype("float32")

    k = axes()
    total = te.compute(
        (count, groups), lambda n, g: te.sum(value(n, g * each + k[0], *k[1:]), axis=k), name="group_sum"
    )
    mean = te.compute((count, groups), lambda n, g: total[n, g] / size, name="group_mean")

    def squared(n: Any, g: Any, at: Sequence[Any]) -> Any:
        apart = value(n, g * each + at[0], *at[1:]) - mean[n, g]
        return apart * apart

    j = axes()
    spread = te.compute((count, groups), lambda n, g: te.sum(squared(n, g, j), axis=j), name="group_var_sum")

    def normalized(n: Any, channel: Any, *place: Any) -> Any:
        g = channel // each
        scale = rsqrt(spread[n, g] / size + epsilon) * weight[channel].astype("float32")
        result = (value(n, channel, *place) - mean[n, g]) * scale + bias[channel].astype("float32")
        return result.astype(x.dtype)

    return te.compute(x.shape, normalized, name="T_group_norm")


def _legalize_group_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs, rank = call.attrs, int(call.ty.ndim)
    axes = sorted(int(axis) % rank for axis in attrs.axes)
    plain = int(attrs.channel_axis) % rank == 1 and axes == list(range(2, rank))
    if not plain or str(call.ty.dtype) not in ("float32", "float16"):
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(group_norm, *call.args, attrs.num_groups, attrs.epsilon, primfunc_name_hint="group_norm")


def _legalize_softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(softmax, call.args[0], call.attrs.axis, primfunc_name_hint="softmax")


def _legalize_scatter_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis, reduction = int(call.attrs.axis) % len(call.ty.shape.values), str(call.attrs.reduction)
    attributes = attributes_of_elements(reduction, axis)
    arguments = *call.args, axis, reduction
    return builder.call_te(
        scatter_elements, *arguments, primfunc_name_hint="scatter_elements", primfunc_attrs=attributes
    )


def _legalize_scatter_nd(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return written_rows(builder, call.args, str(call.attrs.reduction), range(len(call.ty.shape.values)))


def _legalize_boolean(logical: Callable[..., te.Tensor]) -> Callable[[relax.BlockBuilder, relax.Call], relax.Expr]:
    """Return the lowering of an arithmetic operator that TVM lacks for booleans."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if str(call.ty.dtype) != "bool":
            return call.op.get_attr("FLegalize")(builder, call)
        return builder.call_te(logical, *call.args)

    return legalize


def _legalize_product(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Return the lowering of a product. A product with zero is NaN for NaN and infinities, which TVM ignores."""
    others = [value for value in call.args if not _is_zero(value)]
    if len(others) == 1 and str(call.ty.dtype).startswith("float") and list(others[0].ty.shape) == list(call.ty.shape):
        return builder.call_te(_times_zero, others[0], primfunc_name_hint="multiply")
    return _legalize_boolean(topi.logical_and)(builder, call)


def _is_zero(value: Any) -> bool:
    return isinstance(value, GenericConst) and value.ty.ndim == 0 and not value.value.numpy().any()


def _times_zero(x: te.Tensor) -> te.Tensor:
    def product(*at: Any) -> Any:
        value, zero = x(*at), const(0.0, x.dtype)
        return Select(tirx.isfinite(value), zero, const(math.nan, x.dtype))

    return te.compute(x.shape, product, name="times_zero", tag=topi.tag.ELEMWISE)


def _legalize_roi_align(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if int(call.attrs.sample_ratio) > 0 or str(call.attrs.mode) != "avg":
        return call.op.get_attr("FLegalize")(builder, call)
    return adaptive_regions(builder, call)


LEGALIZED: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
    **float_order.LEGALIZED,
    "relax.concat": legalize_concatenation,
    "relax.add": _legalize_boolean(topi.logical_or),
    "relax.multiply": _legalize_product,
    "relax.nn.conv2d": legalize_convolution,
    "relax.nn.group_norm": _legalize_group_norm,
    "relax.nn.softmax": _legalize_softmax,
    "relax.scatter_elements": _legalize_scatter_elements,
    "relax.scatter_nd": _legalize_scatter_nd,
    "relax.vision.roi_align": _legalize_roi_align,
}
"""The function that lowers a call to a kernel, by the operator's name, as ``relax.transform.LegalizeOps`` takes it."""
