"""torch's operators that write at indices: decompositions into a few of them, and the translations of these few.

Importing this module loads torch and TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from tvm import relax

from devices.networks.graph.ir.dynamic_extents import numbers

Convert = Callable[[fx.Node], Any]

_ATEN = torch.ops.aten
_COMBINED = {"prod": "mul", "amax": "max", "amin": "min"}


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return decompositions into ``scatter``, ``scatter_add``, and those reductions of ``scatter_reduce`` that begin
    with the data."""
    return {
        _ATEN.scatter_reduce.two: _scatter_reduce,
        _ATEN.scatter.reduce: _scatter_combined,
        _ATEN.scatter.value_reduce: _scatter_combined_value,
        _ATEN.index_reduce.default: _index_reduce,
        _ATEN.masked_scatter.default: _masked_scatter,
        _ATEN.put.default: _put,
    }


def _scatter_reduce(
    data: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    if not include_self:
        data = data.scatter(dim, index, _identity(reduce, data.dtype))
    if reduce == "sum":
        return data.scatter_add(dim, index, src)
    if reduce == "mean":
        counted = torch.ones_like(data) if include_self else torch.zeros_like(data)
        count = counted.scatter_add(dim, index, torch.ones_like(src)).clamp(min=1)
        total = data.scatter_add(dim, index, src)
        return total / count if data.is_floating_point() else torch.div(total, count, rounding_mode="floor")
    return NotImplemented if include_self else data.scatter_reduce(dim, index, src, reduce)


def _identity(reduce: str, dtype: torch.dtype) -> float | int:
    """Return the number that does not change the result of a reduction."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


def _scatter_combined(data: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, reduce: str) -> Any:
    if reduce == "add":
        return data.scatter_add(dim, index, src)
    return data.scatter_reduce(dim, index, src, "prod")


def _scatter_combined_value(data: torch.Tensor, dim: int, index: torch.Tensor, value: float, *, reduce: str) -> Any:
    return _scatter_combined(data, dim, index, torch.full_like(index, value, dtype=data.dtype), reduce=reduce)


def _index_reduce(
    data: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    line = [-1 if at == dim % data.dim() else 1 for at in range(data.dim())]
    places = index.to(torch.int64).view(line).expand(source.shape)
    return data.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def _masked_scatter(data: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Take the elements of ``source`` one after the other: the index of each is the number of true elements of the mask
    before it."""
    mask = mask.logical_or(torch.zeros_like(data, dtype=torch.bool))  # of the common shape
    data = data.expand(mask.shape)
    places = (torch.cumsum(mask.flatten().to(torch.int64), 0) - 1).clamp(min=0)
    return torch.where(mask, source.flatten()[places].view(data.shape), data)


def _put(data: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Write at indices of the flattened data."""
    return data.flatten().index_put((index.flatten(),), source.flatten(), accumulate).view(data.shape)


def _rows(index: fx.Node) -> fx.Node | None:
    """Return the row numbers if ``index`` repeats them for every element of a row, as in graph networks. None
    otherwise."""
    if index.target is not _ATEN.expand.default:
        return None
    column: fx.Node = index.args[0]  # type: ignore[assignment]
    return (
        column
        if list(column.meta["val"].shape) == [index.meta["val"].shape[0], *[1] * (index.meta["val"].dim() - 1)]
        else None
    )


def translations(importer: Any) -> dict[str, Convert]:
    """Return translations by the operators' names, for TVM's ``importer`` of torch's programs."""

    def emit(expression: Any) -> Any:
        return importer.block_builder.emit(expression)

    def within(updates: Any, extents: list[int]) -> Any:
        """Return a single number of ``updates`` broadcast to all places, or the part of ``updates`` within
        ``extents``."""
        given = numbers("scatter", updates.ty.shape)
        if not given:
            return emit(relax.op.broadcast_to(updates, extents))
        axes = list(range(len(extents)))
        return updates if given == extents else emit(relax.op.strided_slice(updates, axes, [0] * len(axes), extents))

    def written(node: fx.Node, updates: Any, reduction: str) -> Any:
        """Write ``updates`` at the indices of ``node``: whole rows, or element by element."""
        arguments: Any = node.args
        data_node, axis, index_node = arguments[:3]
        data, index = importer.env[data_node], importer.env[index_node]
        extents = numbers("scatter", index_node.meta["val"].shape)
        if 0 in extents:
            return data
        shape = numbers("scatter", data.ty.shape)
        rows = _rows(index_node)
        if rows is not None and axis % len(shape) == 0 and extents[1:] == shape[1:]:
            places = emit(relax.op.reshape(importer.env[rows], [extents[0], 1]))
            return emit(relax.op.scatter_nd(data, places, within(updates, extents), reduction))
        if not shape:  # a scalar: one element
            data = emit(relax.op.reshape(data, [1]))
        if not extents:
            extents, index = [1], emit(relax.op.reshape(index, [1]))
        result = emit(relax.op.scatter_elements(data, index, within(updates, extents), axis, reduction))
        return result if shape else emit(relax.op.reshape(result, []))

    def put_value(node: fx.Node) -> Any:
        dtype = importer._convert_data_type(node.meta["val"].dtype)
        return written(node, relax.const(node.args[3], dtype), "update")

    def combined(node: fx.Node) -> Any:
        return written(node, importer.env[node.args[3]], _COMBINED[str(node.args[4])])

    return {
        "scatter.src": lambda node: written(node, importer.env[node.args[3]], "update"),
        "scatter.value": put_value,
        "scatter_add.default": lambda node: written(node, importer.env[node.args[3]], "add"),
        "scatter_reduce.two": combined,
    }
