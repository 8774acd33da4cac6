"""Shapes and numbers of tensor expressions."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax

Array = npt.NDArray[Any]


def ints(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def axes_of(attrs: Any, rank: int) -> tuple[int, ...]:
    """Return the permutation of a ``permute_dims``; None means reversed."""
    if attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(axis % rank for axis in ints(attrs.axes))


def shape_of(expression: Any) -> tuple[int, ...] | None:
    """Return the static shape of a tensor expression. None if it has none."""
    kind = expression.ty
    if not isinstance(kind, relax.TensorType) or kind.shape is None or not hasattr(kind.shape, "values"):
        return None
    if not all(isinstance(extent, tvm.tirx.IntImm) for extent in kind.shape.values):
        return None
    return ints(kind.shape.values)


def extents_of(expression: Any) -> tuple[Any, ...] | None:
    """Return the extents of a tensor expression: numbers, and TVM expressions for dynamic extents. None if its shape is
    not known."""
    kind = expression.ty
    if not isinstance(kind, relax.TensorType) or kind.shape is None or not hasattr(kind.shape, "values"):
        return None
    return tuple(int(each) if isinstance(each, tvm.tirx.IntImm) else each for each in kind.shape.values)


def have_one_shape(one: Any, other: Any) -> bool:
    """Return true if two tensor expressions have the same shape for all values of its dynamic extents."""
    first, second = extents_of(one), extents_of(other)
    if first is None or second is None or len(first) != len(second):
        return False
    return all(tvm_ffi.structural_equal(*pair) for pair in zip(first, second, strict=True))
