"""Conversion between numpy arrays and TVM's tensors on this machine's CPU, without a copy where that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi

Array = npt.NDArray[Any]

ALIGNMENT_BYTES = 64
"""Alignment that TVM's kernels are compiled for."""
_NOT_SHARED = (BufferError, RuntimeError, TypeError, ValueError)
"""Errors of DLPack for memory that cannot be shared: unknown types, read-only arrays, alignment."""


_CPU = 1  # DLPack's kDLCPU


def on_cpu(tensor: Any) -> bool:
    """Return true if a tensor is in this machine's memory. Comparing its device with TVM's devices would take ten times
    as long."""
    return bool(tensor.__dlpack_device__()[0] == _CPU)


def shared(value: Any) -> Any | None:
    """Return an array or a torch tensor as a TVM tensor in the same memory; None if the memory cannot be shared. A
    tensor without elements is never shared: in strides, numpy and torch count an extent of 0 as 1, and TVM as 0."""
    if 0 in value.shape:
        return None
    # An error takes 20 to 70 us, and small arrays of numpy are mostly not aligned.
    address = value.__array_interface__["data"][0] if isinstance(value, np.ndarray) else value.data_ptr()
    if address % ALIGNMENT_BYTES:
        return None
    try:
        return tvm_ffi.from_dlpack(value, require_alignment=ALIGNMENT_BYTES, require_contiguous=True)
    except _NOT_SHARED:
        return None


def copy_of(value: Any) -> Any | None:
    """Return a copy of an array or a torch tensor as a TVM tensor on the CPU; None if DLPack cannot read it, or it is
    on another device, not contiguous, or without elements.

    ``tvm.runtime.tensor`` is not used: it makes a reference cycle (in ``ctypes``), which keeps the copied array alive
    until the next garbage collection.
    """
    if 0 in value.shape:
        return None
    try:
        given = tvm_ffi.from_dlpack(value, require_contiguous=True)
    except _NOT_SHARED:
        return None
    return tvm.runtime.empty(given.shape, str(given.dtype)).copyfrom(given) if on_cpu(given) else None


def tensor_of(array: Array) -> Any:
    """Return an array as a tensor, in the same memory where that is possible."""
    tensor = shared(array)
    return tvm.runtime.tensor(np.asarray(array, order="C")) if tensor is None else tensor


def array_of(tensor: Any) -> Array:
    """Return a tensor as an array, in the same memory where that is possible."""
    try:
        return np.from_dlpack(tensor)
    except _NOT_SHARED:
        array: Array = tensor.numpy()
        return array


def torch_tensor_of(tensor: Any) -> Any:
    """Return a tensor as a torch tensor, in the same memory where that is possible; None if torch cannot read it."""
    import torch  # importing a name from a module of torch would take half a microsecond each time

    try:
        # Given a capsule, torch does not ask the tensor for its device and stream.
        if on_cpu(tensor):
            return torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
        return torch.utils.dlpack.from_dlpack(tensor).cpu()
    except _NOT_SHARED:
        return None
