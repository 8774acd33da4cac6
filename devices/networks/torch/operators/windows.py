"""torch's views of memory, ``Tensor.unfold`` and ``as_strided``, as kernels that compute the position of each element.

Importing this module loads torch and TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from tvm import relax, te, topi

Convert = Callable[[fx.Node], Any]

WHOLE_WINDOWS = (torch.ops.aten.unfold.default,)
"""Operators that are not decomposed: torch's decomposition of windows reads memory, this module reads an axis."""

_MOST_PLACES = 1 << 22
"""Most elements of a view of memory with gaps: the position of each is stored in a constant."""


def translations(importer: Any) -> dict[str, Convert]:
    """Return translations by the operators' names, for TVM's ``importer`` of torch's programs."""

    def emit(expression: Any) -> Any:
        return importer.block_builder.emit(expression)

    def windows(node: fx.Node) -> Any:
        arguments: Any = node.args
        data, axis, size, step = arguments
        value = importer.env[data]
        rank = data.meta["val"].dim()
        if rank == 0:
            return emit(relax.op.reshape(value, [size]))
        shape = list(node.meta["val"].shape)
        return importer.block_builder.emit_te(_windows, value, axis % rank, step, shape)

    def strided(node: fx.Node) -> Any:
        arguments: Any = node.args
        data, size, strides = arguments[:3]
        given, view = data.meta["val"], node.meta["val"]
        if _same_view(view, given):
            return importer.env[data]
        begin: Any = arguments[3] if len(arguments) > 3 else node.kwargs.get("storage_offset")
        numbers = (*size, *strides, begin or 0, *given.shape, *given.stride(), given.storage_offset())
        if not all(isinstance(each, int) for each in numbers):
            raise ValueError("as_strided() over a dynamic dimension: index the tensor instead, or fix the dimension")
        offset = int(given.storage_offset()) if begin is None else int(begin)
        if 0 in size:
            return emit(relax.op.zeros(size, importer._convert_data_type(given.dtype)))
        order = sorted(range(given.dim()), key=lambda at: (-given.stride(at), given.shape[at] != 1))
        # The memory of a tensor without gaps is the tensor with its axes in order of descending strides.
        spans = [
            given.stride(at) == prod(given.shape[inner] for inner in order[place + 1 :])
            for place, at in enumerate(order)
            if given.shape[at] != 1
        ]
        first = offset - given.storage_offset()
        last = first + sum((extent - 1) * stride for extent, stride in zip(size, strides, strict=True))
        if not all(spans) or first < 0 or last >= given.numel():
            return emit(relax.op.take(flat(importer.env[data]), relax.const(_places(given, size, strides, offset))))
        ordered = importer.env[data]
        if order != list(range(given.dim())):
            ordered = emit(relax.op.permute_dims(ordered, order))
        return importer.block_builder.emit_te(_strided, flat(ordered), size, strides, first)

    def flat(value: Any) -> Any:
        return emit(relax.op.reshape(value, [-1]))

    return {"unfold.default": windows, "as_strided.default": strided}


def _same_view(view: torch.Tensor, given: torch.Tensor) -> bool:
    """Return true if a view is the tensor itself. Dynamic extents are compared as texts: comparing them as numbers
    would fix them."""
    if list(map(str, view.shape)) != list(map(str, given.shape)):
        return False
    if str(view.storage_offset()) != str(given.storage_offset()):
        return False
    strides = zip(view.shape, view.stride(), given.stride(), strict=True)
    return all(str(extent) == "1" or str(one) == str(other) for extent, one, other in strides)


def _windows(data: te.Tensor, axis: int, step: int, shape: Sequence[int]) -> te.Tensor:
    """Return the windows of an axis, ``step`` apart. The elements of each window are the last axis."""

    def element(*at: Any) -> Any:
        return data[(*at[:axis], at[axis] * step + at[-1], *at[axis + 1 : -1])]

    return te.compute(shape, element, name="windows", tag=topi.tag.INJECTIVE)


def _strided(data: te.Tensor, size: Sequence[int], strides: Sequence[int], first: int) -> te.Tensor:
    def element(*at: Any) -> Any:
        return data[sum((place * stride for place, stride in zip(at, strides, strict=True)), first)]

    return te.compute(list(size), element, name="strided", tag=topi.tag.INJECTIVE)


def _places(given: torch.Tensor, size: Sequence[int], strides: Sequence[int], offset: int) -> Any:
    """Return, for each element of the view, the number of the same element in ``given``. Raises ValueError if the view
    has an element that ``given`` does not have, or is too large."""
    if max(given.numel(), prod(size)) > _MOST_PLACES:
        raise ValueError("as_strided() of a tensor with gaps in memory, which is too large: index it instead")
    own = _addresses(given.shape, given.stride(), int(given.storage_offset()))
    held = dict(zip(own.ravel().tolist(), range(own.size), strict=True))
    wanted = _addresses(size, strides, offset)
    try:
        return np.asarray([held[at] for at in wanted.ravel().tolist()], np.int64).reshape(wanted.shape)
    except KeyError:
        raise ValueError(
            "as_strided() reads memory outside of the tensor that it is called on: call it on the whole tensor"
        ) from None


def _addresses(size: Sequence[int], strides: Sequence[int], offset: int) -> npt.NDArray[np.int64]:
    places: npt.NDArray[np.int64] = np.full((), offset, np.int64)
    for extent, stride in zip(size, strides, strict=True):
        places = places[..., None] + np.arange(int(extent)) * int(stride)
    return places
