"""Between numpy arrays and TVM's tensors of this machine's CPU, without a copy where that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

Array = npt.NDArray[Any]

_ALIGNMENT = 64
"""Bytes: what TVM's kernels take for granted."""


def tensor_of(array: Array) -> Any:
    """An array as a tensor, in the same memory where that is contiguous, writable and aligned, of a type that DLPack
    has; else in a copy."""
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % _ALIGNMENT == 0 and array.size:
        try:
            return tvm.runtime.from_dlpack(array)
        except (BufferError, TypeError, RuntimeError):  # of a type that DLPack has not
            pass
    return tvm.runtime.tensor(np.asarray(array, order="C"))


def array_of(tensor: Any) -> Array:
    """A tensor as an array in the same memory, or in a copy where DLPack has not its type."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, TypeError, RuntimeError):
        array: Array = tensor.numpy()
        return array
