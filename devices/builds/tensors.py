"""Between numpy arrays and TVM's tensors of this machine's CPU, without a copy where that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi

Array = npt.NDArray[Any]

_ALIGNMENT_BYTES = 64
"""What TVM's kernels are compiled for."""
_NOT_SHARED = (BufferError, RuntimeError, TypeError, ValueError)
"""How DLPack says that memory cannot be shared: types and read-only arrays that it does not know, alignment."""


def tensor_of(array: Array) -> Any:
    """An array as a tensor, in the same memory where that is possible."""
    try:
        return tvm_ffi.from_dlpack(array, require_alignment=_ALIGNMENT_BYTES, require_contiguous=True)
    except _NOT_SHARED:
        return tvm.runtime.tensor(np.asarray(array, order="C"))


def array_of(tensor: Any) -> Array:
    """A tensor as an array, in the same memory where that is possible."""
    try:
        return np.from_dlpack(tensor)
    except _NOT_SHARED:
        array: Array = tensor.numpy()
        return array
