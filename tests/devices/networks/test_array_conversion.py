"""Arrays and tensors of callers as TVM's tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm

from devices.builds.tensors import ALIGNMENT_BYTES, shared
from devices.networks.array_conversion import to_tvm


@pytest.mark.parametrize("offset", [0, 16])
def test_arrays_and_tensors_that_are_not_aligned_are_copied(offset: int) -> None:
    memory = np.zeros(256, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT_BYTES + offset
    array = memory[start : start + 112].view(np.int64)
    array[:] = np.arange(14)
    for given in (array, torch.from_numpy(array)):
        assert (shared(given) is None) == (offset > 0)
        tensor = to_tvm(given, tvm.cpu())
        assert tensor.numpy().tolist() == list(range(14))
        assert (tensor.data_ptr() == array.ctypes.data) == (offset == 0)
        assert tensor.data_ptr() % ALIGNMENT_BYTES == 0
