"""CUDA errors after which a process can no longer use its GPU, and CUDA's part of TVM's error messages.

CUDA calls most of them sticky: the context is corrupt, and every later call in the process fails with the same error
(CUDA driver API, ``CUresult``: "leaves the process in an inconsistent state and any further CUDA work will return the
same error"). The others say that there is no usable device, or no driver. Each error is listed with its name in the
driver API and its text from the runtime's ``cudaGetErrorString``.
"""

from __future__ import annotations

from enum import Enum

from devices.error_text import last_line, line_with


class LostBy(Enum):
    """The side at fault if a process cannot use its GPU any more."""

    KERNEL = "kernel"
    DEVICE = "device"


_LOSSES = {
    LostBy.KERNEL: (
        ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
        ("CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"),
        ("CUDA_ERROR_ASSERT", "device-side assert triggered"),
        ("CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"),
        ("CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"),
        ("CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"),
        ("CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"),
        ("CUDA_ERROR_INVALID_PC", "invalid program counter"),
        ("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
        ("CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory not completely freed"),
    ),
    LostBy.DEVICE: (
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error"),
        ("CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error"),
        ("CUDA_ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error"),
        ("CUDA_ERROR_MPS_CLIENT_TERMINATED", "the MPS client has been terminated by the server"),
        ("CUDA_ERROR_UNKNOWN", "unknown error"),
        ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
        ("CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
        ("CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"),
        ("CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
        ("CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"),
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "unsupported display driver / cuda driver combination"),
    ),
}
_SAID = ("CUDA Runtime Error", "CUDALaunch Error", "CUDA_ERROR_")


def context_lost_by(text: str) -> LostBy | None:
    """Return the side at fault if an error's text tells that the process has lost its GPU; else None."""
    if "CUDA" not in text:
        return None
    return next(
        (by for by, known in _LOSSES.items() if any(name in text or said in text for name, said in known)), None
    )


def said(error: BaseException) -> str:
    """Return an exception as one line: its type and the line of CUDA's error, or the last line if the error is not
    CUDA's.

    After CUDA's error of a launch, TVM's message has the whole source of the kernel.
    """
    return line_with(error, _SAID) or last_line(error)
