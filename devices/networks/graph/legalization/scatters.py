"""The kernels of ``relax.scatter_elements`` and ``relax.scatter_nd``.

TVM's own kernels have faults. They use wrong places if indices have smaller extents than the data beside the axis. They
lose NaN in maxima. An index out of range makes them write outside of the data. They wake all threads for each index.

A kernel copies the data before it writes. :func:`overwriting` turns it into a kernel that writes into the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import BufferStore, For, ForKind, IfThenElse, PrimFunc, Stmt, Var, const

from devices.networks.graph.ir.dynamic_extents import numbers
from devices.networks.graph.legalization.loops import in_parallel, on_gpu
from devices.sketches.dynamic.rows import tensors

_CHUNK = 16
"""Elements of the inner axes that one iteration of the parallel loop writes: a cache line of float32."""
_MANY = 1 << 15
"""Number of elements from which a kernel that only writes them uses several threads."""
_ROWS, _ELEMENTS = "fleet_tune.writes_rows", "fleet_tune.writes_elements"
"""Attributes of a kernel that replaces elements of its data by updates: the ``order`` of :func:`scatter_nd`, and the
axis of :func:`scatter_elements`."""


def attributes_of_nd(reduction: str, order: Sequence[int]) -> Mapping[str, Any]:
    """Return the attributes by which :func:`overwriting` recognises a kernel of :func:`scatter_nd`."""
    return {_ROWS: list(order)} if reduction == "update" else {}


def attributes_of_elements(reduction: str, axis: int) -> Mapping[str, Any]:
    """Return the attributes by which :func:`overwriting` recognises a kernel of :func:`scatter_elements`."""
    return {_ELEMENTS: axis} if reduction == "update" else {}


def scatter_elements(data: te.Tensor, indices: te.Tensor, updates: te.Tensor, axis: int, reduction: str) -> te.Tensor:
    """Return ``data`` with elements at ``indices`` along ``axis`` replaced by ``updates``, or combined with them.

    ``indices`` and ``updates`` have the same shape, which may be smaller than that of ``data``. A negative index counts
    from the end. Updates are applied in order. An index outside of the axis changes nothing.
    """
    shape, extents = (tuple(numbers("scatter_elements", tensor.shape)) for tensor in (data, indices))
    axis %= len(shape)
    strides = [prod(shape[at + 1 :]) for at in range(len(shape))]
    before, length, behind = extents[:axis], extents[axis], extents[axis + 1 :]
    chunk = 1 if on_gpu() else max(1, min(_CHUNK, prod(behind)))
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


def scatter_nd(
    data: te.Tensor, indices: te.Tensor, updates: te.Tensor, reduction: str, order: Sequence[int] | None = None
) -> te.Tensor:
    """Return ``data`` with elements or rows replaced by ``updates``, or combined with them. The last axis of
    ``indices`` holds their indices along the first axes of ``order``, all or some. Otherwise as
    :func:`scatter_elements`.

    ``order``: the axes of ``data``: first those that are indexed, then those that ``updates`` has after the axes of
    ``indices``. By default 0, 1, 2, ...
    """
    shape, extents = (tuple(numbers("scatter_nd", tensor.shape)) for tensor in (data, indices))
    order = tuple(range(len(shape)) if order is None else order)
    count, named = prod(extents[:-1]), order[: extents[-1]]
    strides = [prod(shape[at + 1 :]) for at in range(len(shape))]
    others = _joined([(shape[at], strides[at]) for at in order[len(named) :]])
    inner = prod(extent for extent, _ in others)
    chunk = 1 if on_gpu() else max(1, min(_CHUNK, inner))
    combine = _COMBINED[reduction]

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        source, where, values, result = map(T.buffer_proxy, (*ins, outs[0]))
        with IRBuilder() as builder:
            with T.seq_scope():
                with in_parallel(prod(shape)) as at:
                    result[at] = source[at]
                with in_parallel(-(-inner // chunk)) as turn, T.serial(0, count) as step:
                    places = [_from_start(where[step * len(named) + at], shape[axis]) for at, axis in enumerate(named)]
                    row = sum((place * strides[axis] for place, axis in zip(places, named, strict=True)), _ZERO)
                    with T.If(_all_inside(places, named, shape)), T.Then(), T.serial(0, chunk) as ahead:
                        column = tirx.Cast("int64", turn) * chunk + ahead
                        with T.If(column < inner), T.Then():
                            target = row + _offset(column, *zip(*others, strict=True)) if others else row
                            result[target] = combine(result[target], values[step * inner + column])
            return builder.get()

    out = tirx.decl_buffer(data.shape, data.dtype, "scattered", layout=None)
    return te.extern(
        [data.shape], [data, indices, updates], body, dtype=data.dtype, out_buffers=[out], name="scatter_nd"
    )


def overwriting(kernel: PrimFunc) -> PrimFunc | None:
    """Return a kernel for CPUs that writes the updates of ``kernel`` into its data, and nothing else. It takes data,
    indices and updates. None for a kernel that is not made here, or that combines updates with the data."""
    attributes = kernel.attrs or {}
    if _ROWS in attributes:
        return _overwriting_rows(kernel, [int(axis) for axis in attributes[_ROWS]])
    if _ELEMENTS in attributes:
        return _overwriting_elements(kernel, int(attributes[_ELEMENTS]))
    return None


def _overwriting_rows(kernel: PrimFunc, order: Sequence[int]) -> PrimFunc:
    data, indices, updates, _ = tensors(kernel)
    steps = len(indices.ty.shape) - 1
    named = order[: int(indices.ty.shape[-1])]
    at = [Var(f"i{axis}", "int64") for axis in range(len(updates.ty.shape))]
    shape = [int(extent) for extent in data.ty.shape]
    places = [
        _from_start(indices[(*at[:steps], const(number, "int64"))], shape[axis]) for number, axis in enumerate(named)
    ]
    target = dict(zip(order, [*places, *at[steps:]], strict=True))
    store = BufferStore(data, updates[tuple(at)], [target[axis] for axis in range(len(shape))])
    loops = dict(zip(at, map(int, updates.ty.shape), strict=True))
    return _kernel([data, indices, updates], loops, at[:steps], _all_inside(places, named, shape), store)


def _overwriting_elements(kernel: PrimFunc, axis: int) -> PrimFunc:
    data, indices, updates, _ = tensors(kernel)
    at = [Var(f"i{each}", "int64") for each in range(len(indices.ty.shape))]
    extent = int(data.ty.shape[axis])
    place = _from_start(indices[tuple(at)], extent)
    store = BufferStore(data, updates[tuple(at)], [place if each == axis else loop for each, loop in enumerate(at)])
    loops = dict(zip(at, map(int, indices.ty.shape), strict=True))
    return _kernel([data, indices, updates], loops, [at[axis]], tirx.all(place >= 0, place < extent), store)


def _kernel(
    parameters: Sequence[Any], loops: Mapping[Var, int], steps: Sequence[Var], inside: Any, store: Stmt
) -> PrimFunc:
    """Return a kernel of loops with these extents around a ``store``. Loops over the ``steps`` keep their order, so
    that a later update overwrites an earlier one."""
    free = [each for each in loops if each not in steps]
    outer = next(([each] for each in free[:-1] if loops[each] > 1), [])
    threads = ForKind.PARALLEL if outer and prod(loops.values()) >= _MANY else ForKind.SERIAL
    body = IfThenElse(inside, store, None)
    for each in reversed([*outer, *steps, *(each for each in free if each not in outer)]):
        kind = threads if each in outer else ForKind.SERIAL
        body = For(each, _ZERO, const(loops[each], "int64"), kind, body)
    root = SBlock([], [], [], "root", body)
    made = PrimFunc(list(parameters), SBlockRealize([], True, root))
    return made.with_attr({"tirx.noalias": True, "tirx.is_scheduled": True})


def _all_inside(places: Sequence[Any], axes: Sequence[int], shape: Sequence[int]) -> Any:
    return tirx.all(
        *(bound for place, at in zip(places, axes, strict=True) for bound in (place >= 0, place < shape[at]))
    )


def _joined(axes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return axes, each an extent and a stride, with axes joined that are contiguous in memory."""
    found: list[tuple[int, int]] = []
    for extent, stride in axes:
        if extent == 1:
            continue
        if found and found[-1][1] == extent * stride:
            found[-1] = found[-1][0] * extent, stride
        else:
            found.append((extent, stride))
    return found


def _from_start(index: Any, extent: int) -> Any:
    """Return an index, which may count from the end of an axis, as an index from its start."""
    wide = tirx.Cast("int64", index)
    return tirx.Select(wide < 0, wide + extent, wide)


def _offset(position: Any, extents: Sequence[int], strides: Sequence[int]) -> Any:
    """Return the memory offset of element ``position`` of flattened axes with these extents and strides."""
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
    if "float" not in str(value.ty.dtype):
        return tirx.const(False, "bool")
    return tirx.isnan(value.astype("float32") if "bfloat16" in str(value.ty.dtype) else value)


_ZERO = tirx.const(0, "int64")

_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda _old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": _greater,
    "min": _less,
}
