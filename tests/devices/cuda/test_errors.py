"""Which errors of TVM tell that a process has lost its GPU, and by whose fault."""

from __future__ import annotations

import pytest

from devices.cuda.errors import LostBy, context_lost_by, said


@pytest.mark.parametrize(
    ("text", "by"),
    [
        ("CUDA: an illegal memory access was encountered", LostBy.KERNEL),
        ("CUDAError: cuLaunchKernel(...) failed with error: CUDA_ERROR_MISALIGNED_ADDRESS", LostBy.KERNEL),
        ("CUDA: unspecified launch failure", LostBy.KERNEL),
        ("CUDA: uncorrectable ECC error encountered", LostBy.DEVICE),
        ("CUDA Runtime Error: cudaErrorNoDevice (100): no CUDA-capable device is detected", LostBy.DEVICE),
        ("CUDA Runtime Error: cudaErrorUnknown (999): unknown error", LostBy.DEVICE),
        ("cuModuleLoadData(...) failed with error: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", LostBy.DEVICE),
        ("CUDA Runtime Error: cudaErrorMemoryAllocation (2): out of memory", None),
        ("CUDAError: cuLaunchKernel(...) failed with error: CUDA_ERROR_INVALID_VALUE", None),
        ("misaligned address", None),
        ("", None),
    ],
)
def test_errors_that_stay(text: str, by: LostBy | None) -> None:
    assert context_lost_by(text) is by


def test_a_refused_launch_is_told_without_the_source_behind_it() -> None:
    text = "Traceback:\n  File x\nCUDALaunch Error: CUDA_ERROR_INVALID_VALUE\n grid=(1,70000,1)\n// CUDA Source\n}"
    assert said(RuntimeError(text)) == "RuntimeError: CUDALaunch Error: CUDA_ERROR_INVALID_VALUE"
    assert said(RuntimeError("Traceback:\nno such function")) == "RuntimeError: no such function"
