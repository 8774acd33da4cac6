"""Errors of CUDA after which a process can run nothing more on the device.

CUDA calls them sticky: the context is corrupt, and every later call in the process fails with the same error (CUDA
runtime API, ``cudaError``: "must be terminated and relaunched"). Here they stand by their names in the driver's
interface, and by what the runtime's ``cudaGetErrorString`` says of them.
"""

from __future__ import annotations

from enum import Enum


class LostBy(Enum):
    """The side at fault where a process cannot use its GPU any more."""

    KERNEL = "kernel"
    DEVICE = "device"


_STICKY = {
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
    ),
    LostBy.DEVICE: (
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error"),
        ("CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error"),
    ),
}


def context_lost_by(text: str) -> LostBy | None:
    """Return the side at fault if an error's text tells that the process has lost its GPU; else None."""
    if "CUDA" not in text:
        return None
    return next(
        (by for by, known in _STICKY.items() if any(name in text or said in text for name, said in known)), None
    )
