"""Conversion between torch tensors and numpy arrays. numpy's bfloat16 comes from ml_dtypes, and torch does not know it.

Importing this module does not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


def array_of(tensor: torch.Tensor) -> Array:
    """Return a tensor as an array of the same type and shape. It shares the tensor's memory if that is on the CPU (for
    bfloat16, also contiguous)."""
    import torch

    plain = tensor.detach().cpu()
    if plain.dtype != torch.bfloat16:
        array: Array = plain.numpy()
        return array
    return plain.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def tensor_of(array: Array) -> torch.Tensor:
    """Return an array as a tensor of the same type, shape and memory."""
    import torch

    if array.dtype != ml_dtypes.bfloat16:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
