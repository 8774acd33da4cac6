"""Errors of CUDA after which a process can run nothing more on the device.

CUDA calls them sticky: the context is corrupt, and every later call in the process fails with the same error (CUDA
runtime API, ``cudaError``: "must be terminated and relaunched").
"""

from __future__ import annotations

# By their names in the driver's interface, and by what the runtime's cudaGetErrorString says of them.
_STICKY = {
    "CUDA_ERROR_ECC_UNCORRECTABLE": "uncorrectable ECC error",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an illegal memory access was encountered",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "the launch timed out and was terminated",
    "CUDA_ERROR_ASSERT": "device-side assert triggered",
    "CUDA_ERROR_HARDWARE_STACK_ERROR": "hardware stack error",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION": "an illegal instruction was encountered",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "misaligned address",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE": "operation not supported on global/shared address space",
    "CUDA_ERROR_INVALID_PC": "invalid program counter",
    "CUDA_ERROR_LAUNCH_FAILED": "unspecified launch failure",
}


def has_lost_its_context(error: BaseException) -> bool:
    """Return true if an error of TVM tells that the process cannot use its GPU any more."""
    text = str(error)
    return "CUDA" in text and any(name in text or words in text for name, words in _STICKY.items())
