"""Which errors of TVM tell that a process has lost its GPU, and by whose fault."""

from __future__ import annotations

import pytest

from devices.cuda.errors import LostBy, context_lost_by


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("CUDA: an illegal memory access was encountered", LostBy.KERNEL),
        ("CUDAError: cuLaunchKernel(...) failed with error: CUDA_ERROR_MISALIGNED_ADDRESS", LostBy.KERNEL),
        ("CUDA: unspecified launch failure", LostBy.KERNEL),
        ("CUDA: uncorrectable ECC error encountered", LostBy.DEVICE),
        ("CUDA: out of memory", None),
        ("CUDAError: cuLaunchKernel(...) failed with error: CUDA_ERROR_INVALID_VALUE", None),
        ("misaligned address", None),
        ("", None),
    ],
)
def test_errors_that_stay(text: str, by: LostBy | None) -> None:
    assert context_lost_by(text) is by
