"""Norms, softmaxes, poolings and paddings in the forms that are lowered and tuned best."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax
from tvm.ir import Call, GenericConst

from devices.builds.tensors import array_of
from devices.networks.graph.ir.calls import constant
from devices.networks.graph.ir.tensors import ints, shape_of
from devices.networks.graph.rewrites.context import RewriteContext, Rule

_ADAPTIVE = {f"relax.nn.adaptive_avg_pool{n}d": getattr(relax.op.nn, f"avg_pool{n}d") for n in (1, 2, 3)}


def _norm_of_one_axis(context: RewriteContext, call: Call) -> Any:
    """Turn a layer norm over several last axes into a norm over one axis. For several axes, TVM's layout rule
    transposes the data, but not the weights."""
    shape = shape_of(call)
    axes = [] if shape is None else sorted(axis % len(shape) for axis in ints(call.attrs.axes))
    if shape is None or len(axes) < 2 or axes != list(range(axes[0], len(shape))):
        return call
    flat = [context.emit(relax.op.reshape(call.args[0], (*shape[: axes[0]], -1)))]
    for argument in call.args[1:]:
        known = context.known(argument)
        if isinstance(known, GenericConst):
            flat.append(constant(array_of(known.value).reshape(-1)))
        else:
            flat.append(context.emit(relax.op.reshape(argument, (-1,))))
    attrs = call.attrs
    norm = relax.op.nn.layer_norm(*flat, axes=[-1], epsilon=attrs.epsilon, center=attrs.center, scale=attrs.scale)
    return relax.op.reshape(context.emit(norm), shape)


def _softmax_of_rows(context: RewriteContext, call: Call) -> Any:
    """Turn a softmax that only products read (attention) into a softmax of rows, between views.

    All softmaxes of equally many rows are then one kernel, with few places for its blocks. Other softmaxes stay:
    operators may be fused with them.
    """
    if context.original.args[0] not in context.attention_scores:
        return call
    shape = shape_of(call)
    if shape is None or len(shape) < 3 or int(call.attrs.axis) % len(shape) != len(shape) - 1:
        return call
    rows = context.emit(relax.op.reshape(call.args[0], (prod(shape[:-1]), shape[-1])))
    return relax.op.reshape(context.emit(relax.op.nn.softmax(rows, axis=-1)), shape)


def _windows_of_one_size(_context: RewriteContext, call: Call) -> Any:
    """Turn adaptive pooling into pooling over windows of one size. Drop it if its windows are single elements.

    If window sizes differ, the adaptive operator stays. TVM cannot tune it.
    """
    before, after = shape_of(call.args[0]), shape_of(call)
    if before is None or after is None:
        return call
    layout = str(call.attrs.layout)
    axes = [layout.index(axis) for axis in "DHW" if axis in layout]
    if before == after:
        return call.args[0]
    if any(before[axis] % after[axis] for axis in axes):
        return call
    window = [before[axis] // after[axis] for axis in axes]
    return _ADAPTIVE[call.op.name](call.args[0], window, strides=window, layout=layout)


def _pad(_context: RewriteContext, call: Call) -> Any:
    """Drop a padding of zero width."""
    return call if any(ints(call.attrs.pad_width)) else call.args[0]


WINDOW_RULES: dict[str, Rule] = {
    "relax.nn.layer_norm": _norm_of_one_axis,
    "relax.nn.softmax": _softmax_of_rows,
    "relax.nn.pad": _pad,
    **dict.fromkeys(_ADAPTIVE, _windows_of_one_size),
}
