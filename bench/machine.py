"""The machine that the figures belong to, and the environment that gives every side of a benchmark as many threads."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.records.sharing.shared import STORE_VARIABLE

_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "ray", "torch", "onnxruntime", "openvino", "xgboost-cpu", "numpy")


def cores() -> int:
    """Return the number of CPUs that this process may use, which is the number of threads of every side."""
    return usable_cpus()


def machine() -> dict[str, Any]:
    """Return the CPU, the memory, the system and the package versions that the figures belong to."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory_kib = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    versions = {}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "cpu": cpu,
        "cores": cores(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def _lines(path: str) -> list[str]:
    with suppress(OSError):
        return Path(path).read_text().splitlines()
    return []


def bench_env(threads: int, **extra: str) -> dict[str, str]:
    """Return the environment of a child process, with the same number of threads for every library.

    ``extra``: further variables.
    """
    count = str(threads)
    names = ("TVM_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    # Without a shared store, the child cannot reuse earlier measurements.
    alone = {STORE_VARIABLE: "", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **dict.fromkeys(names, count), **alone, **extra}
