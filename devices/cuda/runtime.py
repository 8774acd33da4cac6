"""TVM's CUDA runtime in this process, and the loader of kernels that were compiled for a GPU elsewhere."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

from devices.cuda.compiler import install_loader, package_folders
from devices.error_text import last_line


def prepare_cuda() -> str:
    """Prepare TVM to run CUDA kernels, as far as this machine can: without NVIDIA's driver nothing changes. Return why
    TVM's CUDA part cannot be loaded, in one line; empty if it is loaded.

    TVM's CUDA part is a library of its own. It needs CUDA's runtime library, which may be in a Python package that the
    system's loader does not search.
    """
    from tvm.base import _LOADED_LIBS
    from tvm_ffi.libinfo import load_lib_ctypes

    for folder in package_folders():
        for library in sorted(folder.glob("lib/libcudart.so.[0-9]*")):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    problem = ""
    loaded = _LOADED_LIBS.get("tvm_runtime")
    if loaded is not None:
        try:
            folder = Path(loaded._name).resolve().parent
            load_lib_ctypes("tvm", "tvm_runtime_cuda", "RTLD_LOCAL", extra_lib_paths=[folder])
        except (OSError, RuntimeError) as error:  # the loader names the library that is missing
            problem = last_line(error)
    install_loader(_arch)
    return problem


def gpu_problem(unloaded: str) -> str:
    """Return why this process cannot use a GPU, in one line; empty if it can. This initializes CUDA: a process that is
    forked from this one afterwards must not use CUDA.

    ``unloaded``: the result of :func:`prepare_cuda`.
    """
    import tvm

    with contextlib.suppress(RuntimeError):  # TVM without its CUDA part
        if tvm.cuda(0).exist:
            return ""
    return unloaded or "CUDA finds no GPU that this user may open"


def _arch() -> str:
    import tvm

    return f"sm_{tvm.cuda(0).compute_version.replace('.', '')}"
