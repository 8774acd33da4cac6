"""torch's operators on the order of numbers, written with other operators: searches, running extremes, medians.

NaN is larger than every number, as in torch's sorts. Importing this module loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten

Combine = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return the decompositions by operator."""
    return {
        _ATEN.searchsorted.Tensor: _searched,
        _ATEN.searchsorted.Scalar: _searched,
        _ATEN.bucketize.Tensor: _bucket,
        _ATEN.bucketize.Scalar: _bucket,
        _ATEN.cummax.default: partial(_running, torch.ge),
        _ATEN.cummin.default: partial(_running, torch.le),
        _ATEN.logcumsumexp.default: _running_logarithm_of_sums,
        _ATEN.median.default: lambda data: _middle(data.flatten(), 0)[0],
        _ATEN.median.dim: _middle,
        _ATEN.nanmedian.default: lambda data: _middle_of_numbers(data.flatten(), 0)[0],
        _ATEN.nanmedian.dim: _middle_of_numbers,
        _ATEN.kthvalue.default: _chosen_by_rank,
    }


def _searched(
    bounds: Tensor,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Return the positions of ``values`` among sorted ``bounds``, by a binary search."""
    if not isinstance(values, Tensor):
        values = torch.full((), values, dtype=torch.result_type(bounds, values), device=bounds.device)
    if sorter is not None:
        bounds = torch.gather(bounds, -1, sorter)
    extent = bounds.shape[-1]
    begin = torch.zeros_like(values, dtype=torch.int64)
    end = torch.full_like(values, extent, dtype=torch.int64)
    compare = torch.gt if right or side == "right" else torch.ge
    for _ in range(extent.bit_length()):
        middle = (begin + end) >> 1
        at = torch.clamp(middle, max=extent - 1)
        bound = _ATEN.index.Tensor(bounds, [at]) if bounds.dim() == 1 else torch.gather(bounds, -1, at)
        behind = torch.logical_not(compare(bound, values)) & (begin < end)
        begin, end = torch.where(behind, middle + 1, begin), torch.where(behind, end, middle)
    return begin.to(torch.int32) if out_int32 else begin


def _bucket(values: Any, bounds: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return _searched(bounds, values, out_int32=out_int32, right=right)


def _scanned(tensors: Sequence[Tensor], dim: int, combine: Combine) -> Sequence[Tensor]:
    """Return an inclusive scan with ``combine``: each step doubles the number of combined elements."""
    extent, reach = tensors[0].shape[dim], 1
    while reach < extent:
        before = [each.narrow(dim, 0, extent - reach) for each in tensors]
        after = [each.narrow(dim, reach, extent - reach) for each in tensors]
        first = [each.narrow(dim, 0, reach) for each in tensors]
        tensors = [torch.cat(pair, dim) for pair in zip(first, combine(before, after), strict=True)]
        reach *= 2
    return tensors


def _running(not_worse: Callable[..., Tensor], data: Tensor, dim: int) -> Any:
    """Return the running extreme, and its index: that of the last of equal extremes, or of the last NaN."""
    if data.dim() == 0:
        return data.clone(), torch.zeros_like(data, dtype=torch.int64)

    def combine(before: Sequence[Tensor], after: Sequence[Tensor]) -> Sequence[Tensor]:
        taken = not_worse(after[0], before[0]) | (after[0] != after[0])
        return [torch.where(taken, late, early) for early, late in zip(before, after, strict=True)]

    line = [-1 if at == dim % data.dim() else 1 for at in range(data.dim())]
    places = torch.arange(data.shape[dim], device=data.device).view(line).expand(data.shape)
    return tuple(_scanned([data, places], dim, combine))


def _running_logarithm_of_sums(data: Tensor, dim: int) -> Tensor:
    if data.dim() == 0:
        return data.clone()
    return _scanned([data], dim, lambda before, after: [torch.logaddexp(before[0], after[0])])[0]


def _middle(data: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the lower of the two middle numbers, and its index. If there is a NaN, return NaN and the index of the
    first NaN."""
    if data.dim() == 0:
        return data.clone(), torch.zeros_like(data, dtype=torch.int64)
    value, place = _chosen_by_rank(data, (data.shape[dim] + 1) // 2, dim, keepdim)
    if not data.is_floating_point():
        return value, place
    missing = torch.isnan(data)
    incomplete = missing.any(dim, keepdim)
    first = torch.argmax(missing.to(torch.int32), dim, keepdim)
    return torch.where(incomplete, float("nan"), value), torch.where(incomplete, first, place)


def _middle_of_numbers(data: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the lower of the two middle numbers among those that are not NaN, and its index."""
    if not data.is_floating_point() or data.dim() == 0:
        return _middle(data, dim, keepdim)
    count = torch.logical_not(torch.isnan(data)).to(torch.int64).sum(dim, keepdim=True)
    rank = torch.clamp((count - 1) >> 1, min=0)
    chosen = [torch.gather(each, dim, rank) for each in torch.sort(data, dim)]
    return tuple(each if keepdim else each.squeeze(dim) for each in chosen)


def _chosen_by_rank(data: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the number of rank ``k``, counted from one, and its index."""
    if data.dim() == 0:
        return data.clone(), torch.zeros_like(data, dtype=torch.int64)
    chosen = [each.narrow(dim, k - 1, 1) for each in torch.sort(data, dim)]
    return tuple(each if keepdim else each.squeeze(dim) for each in chosen)
