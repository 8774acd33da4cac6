"""Look-ups and slices.

``take`` of a few ranges becomes a slice of each range. Other indices are clipped: in TVM's default mode, an index out
of range reads outside of the table and crashes. Constant negative indices count from the end. Indices are read in their
original shape. Frontends flatten them, which needs a kernel before the look-up, and one after it that copies the whole
result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, GenericConst

from devices.networks.graph.ir.calls import constant, is_call
from devices.networks.graph.ir.tensors import Array, axes_of, ints, shape_of
from devices.networks.graph.rewrites.context import RewriteContext, Rule

#: Most ranges of indices that are read as slices. For more ranges, a look-up is as good.
_MOST_RANGES = 4


def _take(context: RewriteContext, call: Call) -> Any:
    """Constant indices that are a few ranges (the parts of a tuple, a rolled axis) become slices, which are fused with
    other operators; a look-up is not."""
    indices = context.known(call.args[1])
    shape = shape_of(call.args[0])
    if shape is not None and call.attrs.axis is not None and isinstance(indices, GenericConst) and min(shape) > 0:
        slices = _as_slices(context, call, indices, shape)
        if slices is not None:
            return slices
    if isinstance(indices, GenericConst):
        return _with_wrapped_indices(call, indices, shape)
    axis, mode = call.attrs.axis, _safe_mode(call)
    given = _before_reshapes(context, call.args[1])
    if shape_of(call) is None:
        given = call.args[1]
    if shape_of(given) == shape_of(call.args[1]):
        return relax.op.take(call.args[0], given, axis=axis, mode=mode)
    taken = context.emit(relax.op.take(call.args[0], given, axis=axis, mode=mode))
    return relax.op.reshape(taken, shape_of(call))


def _as_slices(context: RewriteContext, call: Call, indices: Any, shape: tuple[int, ...]) -> Any | None:
    """Return a look-up of constant indices as slices. None if it has more than a few ranges."""
    table, axis = call.args[0], int(call.attrs.axis) % len(shape)
    chosen = np.clip(_wrapped(call, indices, shape[axis]), 0, shape[axis] - 1)  # as TVM does
    if chosen.ndim == 0:
        part = context.emit(slice_along(context, table, axis, int(chosen), int(chosen) + 1))
        return relax.op.reshape(part, shape[:axis] + shape[axis + 1 :])
    starts = np.flatnonzero(np.diff(chosen, prepend=-2) != 1) if chosen.ndim == 1 else ()
    if not 0 < len(starts) <= _MOST_RANGES:
        return None
    ranges = [(int(each[0]), int(each[-1]) + 1) for each in np.split(chosen, starts[1:])]
    if ranges == [(0, shape[axis])]:
        return table
    parts = [context.emit(relax.op.strided_slice(table, [axis], [low], [end])) for low, end in ranges]
    return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis=axis)


def _with_wrapped_indices(call: Call, indices: Any, shape: tuple[int, ...] | None) -> Any:
    """Return a look-up of constant indices that all count from the front."""
    axis, mode = call.attrs.axis, _safe_mode(call)
    if mode == str(call.attrs.mode) or shape is None:
        return call
    extent = int(np.prod(shape)) if axis is None else shape[int(axis) % len(shape)]
    index = constant(_wrapped(call, indices, extent).astype(str(call.args[1].ty.dtype)))
    return relax.op.take(call.args[0], index, axis=axis, mode=mode)


def _safe_mode(call: Call) -> str:
    return "clip" if str(call.attrs.mode) == "fast" else str(call.attrs.mode)


def _before_reshapes(context: RewriteContext, index: Any) -> Any:
    """Return the value before the reshapes of ``index``, and before its narrowing to 32 bits, which does not change an
    index of a table."""
    while True:
        producer = context.known(index)
        narrowed = is_call(producer, "relax.astype") and (
            (str(producer.args[0].ty.dtype), str(producer.ty.dtype)) == ("int64", "int32")
        )
        if not narrowed and not (is_call(producer, "relax.reshape") and shape_of(producer.args[0]) is not None):
            return index
        index = producer.args[0]


def _wrapped(call: Call, indices: Any, extent: int) -> Array:
    """Return known indices counted from the front. In TVM's default mode they may count from the end, in the mode
    ``wrap`` they wrap around."""
    places: Array = indices.value.numpy().astype(np.int64)
    mode = str(call.attrs.mode)
    if mode == "wrap":
        return places % extent
    return np.where(places < 0, places + extent, places) if mode == "fast" else places


def split_part(context: RewriteContext, item: Any) -> Any:
    """A part of a split becomes a slice: every reader then fuses its own slice, whereas a split writes all parts to
    memory."""
    split = context.known(item.tuple_value) if isinstance(item, relax.TupleGetItem) else item
    if not is_call(split, "relax.split"):
        return item
    shape, part = shape_of(split.args[0]), shape_of(item)
    if shape is None or part is None:
        return item
    axis = int(split.attrs.axis) % len(shape)
    before = sum(int(field.shape.values[axis]) for field in list(split.ty.fields)[: int(item.index)])
    return slice_along(context, split.args[0], axis, before, before + part[axis])


def slice_along(context: RewriteContext, value: Any, axis: int, begin: int, end: int) -> Any:
    """Return ``value[begin:end]`` along ``axis``."""
    return _slice(context, context.normalize(relax.op.strided_slice(value, [axis], [begin], [end])))


def _slice(context: RewriteContext, call: Call) -> Any:
    """Drop a slice of everything. Slice a tensor before its transpose, so that only the slice is transposed."""
    value = call.args[0]
    shape = shape_of(value)
    if shape is None or shape_of(call) is None:
        return call
    axes, begin, end, *steps = (ints(argument.fields) for argument in call.args[1:])
    if shape_of(call) == shape and min(steps[0] if steps else (), default=1) > 0:
        return value
    producer = context.known(value)
    if not is_call(producer, "relax.permute_dims"):
        return call
    order = axes_of(producer.attrs, len(shape))
    there = [order[axis] for axis in axes]
    part = relax.op.strided_slice(producer.args[0], there, list(begin), list(end), *map(list, steps))
    return relax.op.permute_dims(context.emit(part), list(order))


LOOKUP_RULES: dict[str, Rule] = {"relax.take": _take, "relax.strided_slice": _slice}
