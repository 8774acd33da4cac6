"""Between numpy arrays and TVM's tensors of this machine's CPU, without a copy where that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi

Array = npt.NDArray[Any]

ALIGNMENT_BYTES = 64
"""What TVM's kernels are compiled for."""
_NOT_SHARED = (BufferError, RuntimeError, TypeError, ValueError)
"""How DLPack says that memory cannot be shared: types and read-only arrays that it does not know, alignment."""


_CPU = 1  # DLPack's kDLCPU


def on_cpu(tensor: Any) -> bool:
    """Whether a tensor lies in this machine's memory; comparing its device with TVM's takes ten times as long."""
    return bool(tensor.__dlpack_device__()[0] == _CPU)


def shared(value: Any) -> Any | None:
    """``value``, an array or a torch tensor, as a tensor in the same memory; None where it cannot be shared."""
    try:
        return tvm_ffi.from_dlpack(value, require_alignment=ALIGNMENT_BYTES, require_contiguous=True)
    except _NOT_SHARED:
        return None


def tensor_of(array: Array) -> Any:
    """An array as a tensor, in the same memory where that is possible."""
    tensor = shared(array)
    return tvm.runtime.tensor(np.asarray(array, order="C")) if tensor is None else tensor


def array_of(tensor: Any) -> Array:
    """A tensor as an array, in the same memory where that is possible."""
    try:
        return np.from_dlpack(tensor)
    except _NOT_SHARED:
        array: Array = tensor.numpy()
        return array


def torch_tensor_of(tensor: Any) -> Any:
    """A tensor as one of torch, in the same memory where that is possible; None where torch cannot read it."""
    import torch  # not the name from its module: that import takes half a microsecond each time

    try:
        # A capsule: torch need not ask on which device it is, and how to wait for that.
        if on_cpu(tensor):
            return torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
        return torch.utils.dlpack.from_dlpack(tensor).cpu()
    except _NOT_SHARED:
        return None
