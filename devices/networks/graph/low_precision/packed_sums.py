"""Products and convolutions of packed numbers. The last axis of data is read in groups, and each number along the
second-to-last axis of weights holds one group.

An instruction computes the product of two groups and adds it to a sum. If each group is a single number, these are
plain products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import te, tirx
from tvm.ir import Call

from devices.networks.graph.ir.tensors import ints


@dataclass(frozen=True)
class Packing:
    """The form in which several numbers are packed into one, and multiplied."""

    terms: int
    """Numbers of a group."""
    group: Callable[[te.Tensor, Sequence[Any], Any], Any]
    """Takes data, indices of all axes but the last, and the position of a group on the last axis. Returns the group."""
    nothing: Any
    """Group for positions outside of the data."""
    multiply: Callable[[Any, Any], Any]
    """Returns the product of a group of data with a group of weights."""
    once: bool = False
    """True if each group is computed once, and not for every product that reads it."""

    def groups(self, count: int) -> int:
        """Return the number of groups that hold ``count`` numbers."""
        return -(-count // self.terms)

    @property
    def attributes(self) -> dict[str, str]:
        """Annotations of the block that computes groups."""
        return {"meta_schedule.inline_rule": "disable"} if self.once else {}


@dataclass(frozen=True)
class Window:
    """The elements of the data that a convolution sums over. Fields have one number for each spatial axis."""

    strides: Sequence[int]
    before: Sequence[int]
    """Padding at the beginning."""
    after: Sequence[int]
    """Padding at the end."""
    dilation: Sequence[int]
    groups: int

    @classmethod
    def of(cls, call: Call) -> Window | None:
        """Return the window of a convolution. None if it is not channels last."""
        attrs, padding = call.attrs, ints(call.attrs.padding)
        rank = len(padding) // 2
        places = "DHW"[-rank:]
        channels_last = attrs.data_layout == attrs.out_layout == f"N{places}C" and attrs.kernel_layout == f"{places}IO"
        if not channels_last:
            return None
        return cls(ints(attrs.strides), padding[:rank], padding[rank:], ints(attrs.dilation), int(attrs.groups))

    @property
    def is_padded(self) -> bool:
        """True if there is padding."""
        return any((*self.before, *self.after))


def packed(weights: npt.NDArray[Any], terms: int) -> npt.NDArray[np.int32]:
    """Return ``(..., k, n)`` as ``(..., ceil(k / terms), n)`` with ``terms`` weights in each number of 32 bits, the
    first in the lowest bits. Zeros follow the last weight."""
    *outer, count, columns = weights.shape
    padded = np.zeros((*outer, -(-count // terms) * terms, columns), weights.dtype)
    padded[..., :count, :] = weights
    grouped = np.moveaxis(padded.reshape(*outer, -1, terms, columns), -2, -1)
    return np.ascontiguousarray(grouped).view("<i4")[..., 0]


def summed_product(data: te.Tensor, weights: te.Tensor, packing: Packing) -> te.Tensor:
    """Return the sums of ``(..., m, k)`` with ``(..., k / terms, n)``; the outer axes of the two are broadcast."""
    groups, columns = (int(extent) for extent in weights.shape[-2:])
    rows = [int(extent) for extent in data.shape[:-1]]
    outer = [int(extent) for extent in weights.shape[:-2]]
    packed = te.compute(
        (*rows, groups), lambda *at: packing.group(data, at[:-1], at[-1]), "padded", attrs=packing.attributes
    )
    k = te.reduce_axis((0, groups), name="k")
    rank = max(len(rows) - 1, len(outer))
    # A vector of data has no axis of rows.
    batch = [max(each) for each in zip(_filled(rows[:-1], rank), _filled(outer, rank), strict=True)]

    def total(*at: Any) -> Any:
        left, right = (_own(at[:rank], extents) for extents in (rows[:-1], outer))
        return te.sum(packing.multiply(packed[(*left, *at[rank:-1], k)], weights[(*right, k, at[-1])]), axis=k)

    return te.compute((*batch, *rows[-1:], columns), total, name="dot_products")


def summed_convolution(data: te.Tensor, weights: te.Tensor, window: Window, packing: Packing) -> te.Tensor:
    """Return the sums of a convolution of ``(n, ..., c)`` with weights ``(..., c / groups / terms, o)``."""
    batch, *extents, channels = (int(extent) for extent in data.shape)
    *kernel, terms, filters = (int(extent) for extent in weights.shape)
    read = len(extents)
    high = [n + before + after for n, before, after in zip(extents, window.before, window.after, strict=True)]

    def padded(*at: Any) -> Any:
        here = [i - before for i, before in zip(at[1:-1], window.before, strict=True)]
        value = packing.group(data, (at[0], *here), at[-1])
        if not window.is_padded:
            return value
        inside = [each for i, n in zip(here, extents, strict=True) for each in (i >= 0, i < n)]
        return tirx.if_then_else(tirx.all(*inside), value, packing.nothing)

    numbers = te.compute((batch, *high, packing.groups(channels)), padded, "padded", attrs=packing.attributes)
    over = [te.reduce_axis((0, n), f"k{at}") for at, n in enumerate((*kernel, terms))]
    out = [
        (n - dilation * (k - 1) - 1) // stride + 1
        for n, k, stride, dilation in zip(high, kernel, window.strides, window.dilation, strict=True)
    ]

    def total(*at: Any) -> Any:
        steps = zip(at[1:-1], window.strides, over[:read], window.dilation, strict=True)
        places = [i * stride + k * dilation for i, stride, k, dilation in steps]
        group = at[-1] // (filters // window.groups)
        value = numbers[(at[0], *places, group * terms + over[-1] if window.groups > 1 else over[-1])]
        return te.sum(packing.multiply(value, weights[(*over, at[-1])]), axis=over)

    return te.compute((batch, *out, filters), total, name="dot_products")


def _filled(extents: Sequence[int], rank: int) -> list[int]:
    return [*[1] * (rank - len(extents)), *extents]


def _own(at: Sequence[Any], extents: Sequence[int]) -> list[Any]:
    """Return the indices of a position of a broadcast result in an operand with these extents."""
    own = at[len(at) - len(extents) :]
    return [0 if extent == 1 else index for index, extent in zip(own, extents, strict=True)]
