"""Which errors of TVM tell that a process has lost its GPU."""

from __future__ import annotations

import pytest

from devices.cuda.errors import has_lost_its_context


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("CUDA: an illegal memory access was encountered", True),
        ("CUDAError: cuLaunchKernel(...) failed with error: CUDA_ERROR_MISALIGNED_ADDRESS", True),
        ("CUDA: unspecified launch failure", True),
        ("CUDA: out of memory", False),
        ("CUDAError: cuLaunchKernel(...) failed with error: CUDA_ERROR_INVALID_VALUE", False),
        ("misaligned address", False),
        ("", False),
    ],
)
def test_errors_that_stay(text: str, lost: bool) -> None:
    assert has_lost_its_context(RuntimeError(text)) is lost
