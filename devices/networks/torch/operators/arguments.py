"""Decompositions of operators in forms whose arguments TVM's importer ignores or misreads.

A decomposition returns NotImplemented if TVM reads the operator correctly: torch then does not decompose it. Importing
this module loads torch.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_ATEN = torch.ops.aten
_POOLS = (_ATEN.max_pool2d_with_indices.default, _ATEN.max_pool3d_with_indices.default)

Decomposition = Callable[..., Any]


def decompositions(program: torch.export.ExportedProgram) -> dict[Any, Decomposition]:
    """Return the decompositions for ``program``. The indices of maxima are computed if the program reads them."""
    table = dict(_TABLE)
    called = [node for node in program.graph.nodes if node.op == "call_function"]
    places = {node.target for node in called if any(_reads_second(user) for user in node.users)}
    if places & {*_POOLS}:
        table.update(dict.fromkeys(_POOLS, _pooled_with_places))
    if _ATEN.adaptive_max_pool2d.default in places:
        table[_ATEN.adaptive_max_pool2d.default] = _adaptive_pool_with_places
    return table


def _reads_second(user: torch.fx.Node) -> bool:
    return user.target is operator.getitem and user.args[1:] == (1,) and len(user.users) > 0


def _sum(left: Any, right: Any, *, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else left + right * alpha


def _sum_with_number(left: Tensor, right: Any, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else left + right * alpha


def _difference(left: Any, right: Any, *, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else left - right * alpha


def _difference_with_number(left: Tensor, right: Any, alpha: Any = 1) -> Any:
    return NotImplemented if alpha == 1 else left - right * alpha


def _reversed_difference(left: Tensor, right: Any, alpha: Any = 1) -> Tensor:
    scaled = left if alpha == 1 else left * alpha
    return right - scaled if isinstance(right, Tensor) else -scaled + right  # also of a number minus a tensor


def _product(left: Any, right: Any) -> Any:
    """Return the logical "and" for a product of booleans, which kernels cannot multiply."""
    both = all(isinstance(each, Tensor) and each.dtype == torch.bool for each in (left, right))
    return torch.logical_and(left, right) if both else NotImplemented


def _chosen(condition: Tensor, left: Any, right: Any) -> Any:
    if not (isinstance(left, Tensor) and isinstance(right, Tensor)) or left.dtype == right.dtype:
        return NotImplemented
    dtype = torch.result_type(left, right)
    return torch.where(condition, left.to(dtype), right.to(dtype))


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    if all(tensor.dtype == dtype for tensor in tensors):
        return NotImplemented
    return torch.cat([tensor.to(dtype) for tensor in tensors], dim)


def _clamped(data: Tensor, min: Any = None, max: Any = None) -> Any:
    """Return the upper bound everywhere if it is below the lower bound."""
    return torch.clamp(data, max, max) if min is not None and max is not None and min > max else NotImplemented


def _any_along(data: Tensor, dim: int, keepdim: bool = False) -> Any:
    return NotImplemented if data.dtype == torch.bool else torch.any(data != 0, dim, keepdim)


def _any_along_several(data: Tensor, dim: list[int] | None = None, keepdim: bool = False) -> Any:
    return NotImplemented if data.dtype == torch.bool else torch.any(data != 0, dim, keepdim)


def _largest(data: Tensor, dim: int, keepdim: bool = False) -> Any:
    return torch.amax(data, dim, keepdim), torch.argmax(data, dim, keepdim)


def _smallest(data: Tensor, dim: int, keepdim: bool = False) -> Any:
    return torch.amin(data, dim, keepdim), torch.argmin(data, dim, keepdim)


def _norm(
    data: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Return the number of nonzero elements for order 0. (TVM would divide by the order.)"""
    if ord != 0:
        return NotImplemented
    return torch.sum((data != 0).to(dtype or data.dtype), dim, keepdim)


def _sum_of_products(data: Tensor, left: Tensor, right: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = (left @ right).sum(0) * alpha
    return product if beta == 0 else data * beta + product


def _stably_sorted(data: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:  # noqa: ARG001
    return torch.sort(data, dim, descending)  # TVM's sort is stable


def _averaged(
    data: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    _count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the sums of windows divided by ``divisor_override``, computed as averages of windows that are filled with
    zeros."""
    if divisor_override is None:
        return NotImplemented
    kernel = list(kernel_size)
    steps, pads = _per_axis(stride or kernel, len(kernel)), _per_axis(padding, len(kernel))
    extents = data.shape[-len(kernel) :]
    counts = _counts(extents, kernel, steps, pads, ceil_mode)
    filled = functional.pad(data, _padding(extents, kernel, steps, pads, counts))
    pool = functional.avg_pool2d if len(kernel) == 2 else functional.avg_pool3d
    return pool(filled, kernel, steps) * (prod(kernel) / divisor_override)


def _pooled(
    data: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """Return a pooling with the kernel's size as its stride if no stride is given."""
    if stride:
        return NotImplemented
    whole = _POOLS[len(kernel_size) - 2]
    return whole(data, kernel_size, kernel_size, padding, dilation, ceil_mode)


def _pooled_with_places(
    data: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """Return maxima with their indices in the data. The elements of a window are compared one after the other: the
    index is that of the first of equal maxima, or of the last NaN."""
    kernel = list(kernel_size)
    steps, pads = _per_axis(stride or kernel, len(kernel)), _per_axis(padding, len(kernel))
    apart = _per_axis(dilation, len(kernel))
    reach = [gap * (size - 1) + 1 for gap, size in zip(apart, kernel, strict=True)]
    extents = data.shape[-len(kernel) :]
    counts = _counts(extents, reach, steps, pads, ceil_mode)
    around = _padding(extents, reach, steps, pads, counts)
    lowest = float("-inf") if data.dtype.is_floating_point else torch.iinfo(data.dtype).min
    filled = functional.pad(data, around, value=lowest)
    numbers = functional.pad(torch.arange(prod(extents), device=data.device).view(list(extents)), around)
    best = places = None
    for offset in itertools.product(*map(range, kernel)):
        value, place = filled, numbers
        for axis, (at, gap, step, count) in enumerate(zip(offset, apart, steps, counts, strict=True)):
            first, end = at * gap, at * gap + (count - 1) * step + 1
            value, place = (_sliced(each, axis - len(kernel), first, end, step) for each in (value, place))
        if best is None or places is None:
            best, places = value, place.expand(value.shape)
            continue
        larger = (value > best) | (value != value)
        best, places = torch.where(larger, value, best), torch.where(larger, place, places)
    return best, places


def _sliced(data: Tensor, axis: int, first: int, end: int, step: int) -> Tensor:
    sliced: Tensor = _ATEN.slice.Tensor(data, axis, first, end, step)
    return sliced


def _adaptive_pool_with_places(data: Tensor, output_size: Sequence[int]) -> Any:
    """Return maxima of windows of different sizes with their indices in the data."""
    height, width = data.shape[-2:]
    rows, columns = (_windows(size, count) for size, count in zip((height, width), output_size, strict=True))
    values, places = [], []
    for top, bottom in rows:
        for left, right in columns:
            window = data[..., top:bottom, left:right].flatten(-2)
            at = torch.argmax(window, -1)
            values.append(torch.amax(window, -1))
            places.append((top + at // (right - left)) * width + left + at % (right - left))
    shape = [*data.shape[:-2], len(rows), len(columns)]
    return torch.stack(values, -1).view(shape), torch.stack(places, -1).view(shape)


def _windows(extent: int, count: int) -> list[tuple[int, int]]:
    return [(at * extent // count, -(-(at + 1) * extent // count)) for at in range(count)]


def _per_axis(values: Sequence[int], rank: int) -> list[int]:
    return list(values) if len(values) == rank else [*values] * rank


def _counts(
    extents: Sequence[int], reach: Sequence[int], steps: Sequence[int], pads: Sequence[int], ceil_mode: bool
) -> list[int]:
    """Return the number of windows of each axis. A window that would begin in the padding at the end does not count."""
    counts = []
    for extent, size, step, pad in zip(extents, reach, steps, pads, strict=True):
        room = extent + 2 * pad - size
        count = (-(-room // step) if ceil_mode else room // step) + 1
        counts.append(count - 1 if ceil_mode and (count - 1) * step >= extent + pad else count)
    return counts


def _padding(
    extents: Sequence[int], reach: Sequence[int], steps: Sequence[int], pads: Sequence[int], counts: Sequence[int]
) -> list[int]:
    """Return the padding that fills all windows, in the form of ``pad``: the last axis first."""
    around: list[int] = []
    for extent, size, step, pad, count in zip(extents, reach, steps, pads, counts, strict=True):
        around = [pad, max((count - 1) * step + size - extent - pad, 0), *around]
    return around


_TABLE: dict[Any, Decomposition] = {
    _ATEN.add.Tensor: _sum,
    _ATEN.add.Scalar: _sum_with_number,
    _ATEN.sub.Tensor: _difference,
    _ATEN.sub.Scalar: _difference_with_number,
    _ATEN.rsub.Tensor: _reversed_difference,
    _ATEN.rsub.Scalar: _reversed_difference,
    _ATEN.mul.Tensor: _product,
    _ATEN.where.self: _chosen,
    _ATEN.cat.default: _joined,
    _ATEN.clamp.default: _clamped,
    _ATEN.any.dim: _any_along,
    _ATEN.any.dims: _any_along_several,
    _ATEN.max.dim: _largest,
    _ATEN.min.dim: _smallest,
    _ATEN.linalg_vector_norm.default: _norm,
    _ATEN.addbmm.default: _sum_of_products,
    _ATEN.sort.stable: _stably_sorted,
    _ATEN.avg_pool2d.default: _averaged,
    _ATEN.avg_pool3d.default: _averaged,
    **dict.fromkeys(_POOLS, _pooled),
}
