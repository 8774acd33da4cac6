"""A GPU made of software: CUDA's driver and runtime library as far as TVM uses them, and a compiler for it.

TVM's own CUDA runtime runs on it (``driver.cc``), so that device servers, sessions and errors are those of a machine
with a GPU. Processes see it that are started in :attr:`EmulatedGpu.environment`. It fails as a GPU does: memory ends, a
bad access makes the context of its process useless, a process that was forked after CUDA began cannot use it; and it
can be told to fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tests.helpers.cuda_on_cpu import nvcc

NO_DEVICE, ECC_UNCORRECTABLE, ILLEGAL_ADDRESS, UNKNOWN = 100, 214, 700, 999
HERE = Path(__file__).parent
_FIELDS = (
    "lost_by",
    "fault",
    "launches_to_fault",
    "memory_bytes",
    "multiprocessors",
    "watchdog_millisecs",
    "contexts",
    "launches",
)


class EmulatedGpu:
    """A GPU with its driver in ``folder``."""

    target: ClassVar[dict[str, Any]] = {
        "kind": "cuda",
        "arch": "sm_89",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 48 << 10,
        "thread_warp_size": 32,
    }
    """An architecture that no other test builds for: what is compiled once for a target is for this GPU alone."""

    def __init__(self, folder: Path, memory_bytes: int = 1 << 30) -> None:
        self._folder = folder
        np.zeros(len(_FIELDS), np.int64).tofile(folder / "gpu")
        self._state = np.memmap(folder / "gpu", np.int64)
        self._set(memory_bytes=memory_bytes, multiprocessors=1)
        self._compile_driver()
        compiler = folder / "nvcc"
        compiler.write_text(f'#!/bin/sh\nexec {sys.executable} -S {nvcc.__file__} "$@"\n')
        compiler.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of processes that have this GPU."""
        return {
            "EMULATED_GPU": str(self._folder / "gpu"),
            "LD_PRELOAD": str(self._folder / "libcudart.so.13"),  # before a real one of a Python package
            "LD_LIBRARY_PATH": f"{self._folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "FLEET_TUNE_NVCC": str(self._folder / "nvcc"),
        }

    @property
    def contexts(self) -> int:
        """Contexts that were made so far: one for each process that used it."""
        return self._get("contexts")

    @property
    def launches(self) -> int:
        """Kernels that were launched so far."""
        return self._get("launches")

    def lose(self, error: int) -> None:
        """Let every call fail with ``error``, in processes that have a context for good."""
        self._set(lost_by=error)

    def come_back(self) -> None:
        """Let it work again, in new processes."""
        self._set(lost_by=0)

    def fail_at(self, launch: int, error: int) -> None:
        """Let the context of the process fail that makes the ``launch``-th launch from now on (from 0)."""
        self._set(launches_to_fault=launch, fault=error)

    def end_launches_after(self, secs: float) -> None:
        """End kernels that run longer, as with a GPU that also draws a screen; 0 to let them run."""
        self._set(watchdog_millisecs=round(1e3 * secs))

    def _get(self, field: str) -> int:
        return int(self._state[_FIELDS.index(field)])

    def _set(self, **fields: int) -> None:
        for field, value in fields.items():
            self._state[_FIELDS.index(field)] = value

    def _compile_driver(self) -> None:
        library, versions = self._folder / "libcudart.so.13", self._folder / "versions"
        versions.write_text("libcudart.so.13 { global: *; };\n")
        options = ["-std=c++17", "-O2", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13"]
        options.append(f"-Wl,--version-script={versions}")
        subprocess.run(["g++", *options, "-o", library, HERE / "driver.cc", "-ldl", "-lrt"], check=True)
        (self._folder / "libcuda.so.1").symlink_to(library)  # one library for both names


def missing() -> str:
    """Return why this machine cannot make one, in one line; empty where it can."""
    return "" if shutil.which("g++") else "there is no C++ compiler (g++) on this machine"
