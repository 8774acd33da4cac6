"""Conversion of a caller's arrays and tensors to TVM's tensors and back, without copies where memory may be shared.

A network of a few milliseconds with an image of some megabytes would spend a tenth of its time on copies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm

from devices.builds.tensors import ALIGNMENT_BYTES, array_of, copy_of, on_cpu, shared, torch_tensor_of
from devices.networks.torch import arrays as torch_arrays


def is_torch(value: Any) -> bool:
    """Return true for a value of a type of torch."""
    return _is_part_of_torch(type(value).__module__)


@functools.cache
def _is_part_of_torch(module: str) -> bool:
    return module.partition(".")[0] == "torch"


def _is_tensor(kind: type[Any]) -> bool:
    return kind.__name__ == "Tensor" and kind.__module__ == "torch"


@dataclass(frozen=True)
class InputSignature:
    """Types and shapes of plain torch tensors that were passed to a network."""

    each: tuple[tuple[type[Any], Any, Any], ...]
    """Type, element type and shape of each tensor."""
    is_same: Callable[..., bool] | None
    """One call of torch that compares other inputs with these in everything but their addresses. None if torch does not
    offer it."""


def input_signature(inputs: Sequence[Any]) -> InputSignature | None:
    """Return the signature of ``inputs``, which the network accepts. None if one of them is not a plain torch tensor
    (reading a tensor of a subclass may run other code), or has no elements (TVM gives it other strides)."""
    if not inputs or not all(_is_tensor(type(value)) and value.numel() for value in inputs):
        return None
    signature = InputSignature(tuple((type(value), value.dtype, value.shape) for value in inputs), None)
    return replace(signature, is_same=_comparison_with(inputs)) if can_pass_directly(inputs, signature) else signature


def _comparison_with(inputs: Sequence[Any]) -> Callable[..., bool] | None:
    """Return torch.compile's guard for ``inputs``. It compares types, devices, sizes, strides, whether gradients are
    required, and whatever else changes what an operator does. It takes a microsecond less than comparing each property.
    None if torch does not offer it."""
    try:
        from torch._C._dynamo.guards import TensorGuards

        compared: Callable[..., bool] = TensorGuards(*inputs, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        return compared if compared(*inputs) else None
    except (ImportError, TypeError, RuntimeError):  # not a public part of torch
        return None


def can_pass_directly(inputs: Sequence[Any], signature: InputSignature) -> bool:
    """Return true if ``inputs`` are torch tensors of this signature in this machine's memory that TVM's kernels can
    read without a copy. TVM then returns torch tensors, which takes less time than the conversions (0.5 instead of 1.5
    microseconds)."""
    if len(inputs) != len(signature.each):
        return False
    if signature.is_same is not None and signature.is_same(*inputs):
        addresses = 0
        for value in inputs:
            addresses |= value.data_ptr()
        return addresses % ALIGNMENT_BYTES == 0
    for value, (kind, dtype, shape) in zip(inputs, signature.each, strict=True):
        if (
            type(value) is not kind
            or value.dtype is not dtype
            or value.shape != shape
            or not value.is_cpu
            or value.is_sparse
            or value.requires_grad
            or value.data_ptr() % ALIGNMENT_BYTES
            or not value.is_contiguous()
        ):
            return False
    return True


def to_tvm(value: Any, device: Any, copied: bool = False) -> Any:
    """Return an array or a torch tensor as a TVM tensor on ``device``. The tensor shares the memory of ``value`` if
    that is on a CPU, contiguous and aligned, unless ``copied``. Otherwise it is a copy. The network only reads shared
    memory."""
    plain = value.detach() if is_torch(value) and value.requires_grad else value
    tensor = None if copied else shared(plain)
    if tensor is not None and on_cpu(tensor) and device.type == "cpu":
        return tensor
    if device.type == "cpu" and (tensor := copy_of(plain)) is not None:
        return tensor
    array = torch_arrays.array_of(plain) if is_torch(plain) else plain
    return tvm.runtime.tensor(np.asarray(array, order="C"), device)


def to_caller(tensor: Any, as_torch: bool, copied: bool) -> Any:
    """Return a TVM tensor as an array or as a torch tensor. The result shares the tensor's memory if that is on a CPU,
    unless ``copied``."""
    if not as_torch:
        return tensor.numpy() if copied else array_of(tensor)
    result = None if copied else torch_tensor_of(tensor)
    return torch_arrays.tensor_of(tensor.numpy()) if result is None else result


def flat(result: Any) -> list[Any]:
    """Return the tensors of a virtual machine's result, nested tuples flattened."""
    if hasattr(result, "numpy"):
        return [result]
    return [tensor for item in result for tensor in flat(item)]


def shares_memory(tensor: Any, others: Sequence[Any]) -> bool:
    """Return true if ``tensor`` lies in the memory of one of ``others``, as when a network returns its input."""
    start = tensor.data_ptr()
    return any(other.data_ptr() <= start < other.data_ptr() + tensor_bytes(other) for other in others)


def tensor_bytes(tensor: Any) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * int(tvm.DataType(str(tensor.dtype)).itemsize)
