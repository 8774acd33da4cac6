"""NVIDIA's driver as a library whose functions all fail: TVM's CUDA runtime loads, as on a machine with a GPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tvm.base import _LOADED_LIBS

from devices.cuda.compiler import package_folders

NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def environment_with_driver(folder: Path) -> dict[str, str] | None:
    """Make ``libcuda.so.1`` in ``folder``, and return the environment of a process that finds it and CUDA's runtime
    library; None where this machine has no such library."""
    cudart = next((path.parent for path in _runtime_libraries()), None)
    if cudart is None:
        return None
    runtime = Path(_LOADED_LIBS["tvm_runtime"]._name).resolve().parent / "libtvm_runtime_cuda.so"
    symbols = subprocess.run(["nm", "-D", "--undefined-only", runtime], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in symbols.stdout.splitlines() if line.split()[-1].startswith("cu")]
    driver = [name for name in names if name[2].isupper()]  # cuLaunchKernelEx; cudaMalloc is the runtime library's
    source = folder / "driver.c"
    source.write_text("".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in driver))
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", source]
    subprocess.run(command, check=True)
    return {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{cudart}"}


def _runtime_libraries() -> list[Path]:
    roots = [*package_folders(), *Path("/usr/local").glob("cuda*")]
    return [path for root in roots for path in sorted(root.glob("lib*/libcudart.so.13"))]
