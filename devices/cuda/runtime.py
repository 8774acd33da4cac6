"""TVM's CUDA runtime in this process, and the loader of kernels that were compiled for a GPU elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

from devices.cuda.compiler import install_loader, package_folders


def prepare_cuda() -> None:
    """Have TVM run CUDA kernels, as far as this machine can: without NVIDIA's driver nothing changes.

    TVM's runtime library alone does not contain CUDA's part, and that part needs CUDA's own runtime library, which may
    come as a Python package that the loader does not search.
    """
    from tvm.base import _LOADED_LIBS
    from tvm_ffi.libinfo import load_lib_ctypes

    for folder in package_folders():
        for library in sorted(folder.glob("lib/libcudart.so.[0-9]*")):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    loaded = _LOADED_LIBS.get("tvm_runtime")
    if loaded is not None:
        with contextlib.suppress(OSError, RuntimeError):
            folder = Path(loaded._name).resolve().parent
            load_lib_ctypes("tvm", "tvm_runtime_cuda", "RTLD_LOCAL", extra_lib_paths=[folder])
    install_loader(_arch)


def _arch() -> str:
    import tvm

    return f"sm_{tvm.cuda(0).compute_version.replace('.', '')}"
