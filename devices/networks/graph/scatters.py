"""The kernels of ``relax.scatter_elements`` and ``relax.scatter_nd``.

TVM's own take other places where indices have smaller extents than the data beside the axis, lose NaN in maxima, write
outside of the data for an index that is, and wake all threads for each index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from devices.networks.graph.dynamic_extents import numbers
from devices.networks.graph.loops import in_parallel, on_gpu

_CHUNK = 16
"""Elements behind the axis that one turn of the parallel loop writes: those of a cache line, in float32."""


def scatter_elements(data: te.Tensor, indices: te.Tensor, updates: te.Tensor, axis: int, reduction: str) -> te.Tensor:
    """Return ``data`` with ``updates`` put, or combined with what is there, at ``indices`` along ``axis``.

    ``indices`` and ``updates`` have the same shape, which may be smaller than that of ``data``. A negative index counts
    from the end. Updates are taken in their order; an index outside of the axis changes nothing.
    """
    shape, extents = (tuple(numbers("scatter_elements", tensor.shape)) for tensor in (data, indices))
    axis %= len(shape)
    strides = [prod(shape[at + 1 :]) for at in range(len(shape))]
    before, length, behind = extents[:axis], extents[axis], extents[axis + 1 :]
    chunk = 1 if on_gpu() else min(_CHUNK, prod(behind))
    chunks = -(-prod(behind) // chunk)
    combine = _COMBINED[reduction]

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        source, where, values, result = map(T.buffer_proxy, (*ins, outs[0]))
        with IRBuilder() as builder:
            with T.seq_scope():
                with in_parallel(prod(shape)) as at:
                    result[at] = source[at]
                with in_parallel(prod(before) * chunks) as turn:
                    row = tirx.Cast("int64", turn) // chunks
                    first = (tirx.Cast("int64", turn) % chunks) * chunk
                    start = _offset(row, before, strides)
                    with T.serial(0, length) as step, T.serial(0, chunk) as ahead:
                        column = first + ahead
                        with T.If(column < prod(behind)), T.Then():
                            here = (row * length + step) * prod(behind) + column
                            index = _from_start(where[here], shape[axis])
                            with T.If(tirx.all(index >= 0, index < shape[axis])), T.Then():
                                target = start + index * strides[axis] + _offset(column, behind, strides[axis + 1 :])
                                result[target] = combine(result[target], values[here])
            return builder.get()

    out = tirx.decl_buffer(data.shape, data.dtype, "scattered", layout=None)
    return te.extern(
        [data.shape], [data, indices, updates], body, dtype=data.dtype, out_buffers=[out], name="scatter_elements"
    )


def scatter_nd(data: te.Tensor, indices: te.Tensor, updates: te.Tensor, reduction: str) -> te.Tensor:
    """Return ``data`` with ``updates`` put, or combined with what is there, at the places that the last axis of
    ``indices`` names: the first axes of ``data``, all or some. Otherwise as :func:`scatter_elements`."""
    shape, extents = (tuple(numbers("scatter_nd", tensor.shape)) for tensor in (data, indices))
    count, named = prod(extents[:-1]), extents[-1]
    inner = prod(shape[named:])
    strides = [prod(shape[at + 1 : named]) for at in range(named)]
    chunk = 1 if on_gpu() else min(_CHUNK, inner)
    combine = _COMBINED[reduction]

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        source, where, values, result = map(T.buffer_proxy, (*ins, outs[0]))
        with IRBuilder() as builder:
            with T.seq_scope():
                with in_parallel(prod(shape)) as at:
                    result[at] = source[at]
                with in_parallel(-(-inner // chunk)) as turn, T.serial(0, count) as step:
                    places = [_from_start(where[step * named + at], shape[at]) for at in range(named)]
                    row = sum((place * stride for place, stride in zip(places, strides, strict=True)), _ZERO)
                    inside = [
                        bound
                        for place, extent in zip(places, shape, strict=False)
                        for bound in (place >= 0, place < extent)
                    ]
                    with T.If(tirx.all(*inside)), T.Then(), T.serial(0, chunk) as ahead:
                        column = tirx.Cast("int64", turn) * chunk + ahead
                        with T.If(column < inner), T.Then():
                            target = row * inner + column
                            result[target] = combine(result[target], values[step * inner + column])
            return builder.get()

    out = tirx.decl_buffer(data.shape, data.dtype, "scattered", layout=None)
    return te.extern(
        [data.shape], [data, indices, updates], body, dtype=data.dtype, out_buffers=[out], name="scatter_nd"
    )


def _from_start(index: Any, extent: int) -> Any:
    """Return an index that may count from the end of an axis as one that counts from its start."""
    wide = tirx.Cast("int64", index)
    return tirx.Select(wide < 0, wide + extent, wide)


def _offset(position: Any, extents: Sequence[int], strides: Sequence[int]) -> Any:
    """Return the offset of the place ``position`` of the flattened axes of ``extents``, each with its stride."""
    offset, rest = _ZERO, position
    for at in reversed(range(len(extents))):
        offset = offset + (rest if at == 0 else rest % extents[at]) * strides[at]
        rest = rest // extents[at]
    return offset


def _greater(old: Any, new: Any) -> Any:
    return tirx.Select(tirx.any(new > old, _is_nan(new)), new, old)


def _less(old: Any, new: Any) -> Any:
    return tirx.Select(tirx.any(new < old, _is_nan(new)), new, old)


def _is_nan(value: Any) -> Any:
    return tirx.isnan(value) if "float" in str(value.ty.dtype) else tirx.const(False, "bool")


_ZERO = tirx.const(0, "int64")

_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda _old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": _greater,
    "min": _less,
}
