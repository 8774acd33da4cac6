"""NVIDIA's GPU of this machine, where it has one."""

from __future__ import annotations

import ctypes
from functools import cache

from devices.cuda.compiler import find_compiler


@cache
def arch() -> str:
    """The architecture of the first GPU (``"sm_90"``). Raises :class:`LookupError`, which says what is missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LookupError("this machine has no NVIDIA driver (libcuda.so.1)") from error
    count, major, minor = (ctypes.c_int() for _ in range(3))
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise LookupError("NVIDIA's driver finds no GPU on this machine")
    for value, attribute in ((major, 75), (minor, 76)):
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
    if find_compiler() is None:
        raise LookupError("this machine has a GPU and no CUDA compiler: pip install 'fleet-tune[cuda]'")
    return f"sm_{major.value}{minor.value}"
