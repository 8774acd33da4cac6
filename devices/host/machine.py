"""Description of a device's machine: CPU, caches, threads and versions. Runs on the device."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from devices.host.board import board_name
from devices.host.power_mode import power_mode


def native_target() -> str:
    """Return the canonical JSON text of this machine's CPU as a target.

    A separate process finds it: LLVM, which knows the CPU's name, is not in TVM's runtime library.
    """
    environment = {key: value for key, value in os.environ.items() if key != "TVM_USE_RUNTIME_LIB"}
    code = "from devices.host.children.child import load_tvm; load_tvm()\n"
    code += "from devices.targets import resolve_target; print(resolve_target('native'))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip().splitlines()[-1]


def describe(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the description of this machine: processor, threads of TVM's pool, cache sizes of core 0 by level,
    versions of TVM, the processor's microcode, the GPU's driver, and the power mode by kind of device (empty if the
    kernel does not report it)."""
    import tvm

    return {
        "cpu_model": processor_name(root),
        "microcode": _processor_fields(root).get("microcode", ""),
        "driver": gpu_driver(root),
        "power": {kind: power_mode(root, kind) for kind in ("cpu", "cuda")},
        "threads": int(environment.get("TVM_NUM_THREADS", "0")),
        "tvm_version": tvm.__version__,
        "caches": cache_sizes(root),
    }


def processor_name(root: Path = Path("/")) -> str:
    """Return the processor's name from /proc/cpuinfo (x86: model name; ARM boards: Model, or the part's number); for a
    Jetson, the name of the board: there the model name is the same for all of them."""
    board = board_name(root)
    if board:
        return board
    fields = _processor_fields(root)
    named = fields.get("model name") or fields.get("Model")
    if named:
        return named
    part = " ".join(f"{key} {fields[key]}" for key in ("CPU implementer", "CPU part") if key in fields)
    return part or platform.processor() or platform.machine()


def gpu_driver(root: Path = Path("/")) -> str:
    """Return the version of NVIDIA's driver, on a Jetson the version of its Linux; empty if there is neither."""
    with contextlib.suppress(OSError):
        found = re.search(r"\b\d+\.\d+(\.\d+)*\b", (root / "proc/driver/nvidia/version").read_text(errors="replace"))
        if found:
            return found.group()
    with contextlib.suppress(OSError):
        # "# R35 (release), REVISION: 4.1, GCID: ..."
        text = (root / "etc/nv_tegra_release").read_text(errors="replace")
        found = re.match(r"# R(\d+) \(release\), REVISION: ([\d.]+)", text)
        if found:
            return f"L4T {found[1]}.{found[2]}"
    return ""


def _processor_fields(root: Path) -> dict[str, str]:
    """Return the fields of the first processor in /proc/cpuinfo."""
    fields: dict[str, str] = {}
    for line in (root / "proc/cpuinfo").read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields


def cache_sizes(root: Path = Path("/")) -> dict[str, int]:
    """Return the bytes of the data caches of core 0, by level ("1", "2", "3"); empty if the kernel does not report
    them."""
    return {level: size for level, (size, _) in _data_caches(root, 0).items()}


def last_caches_bytes(cpus: Iterable[int], root: Path = Path("/")) -> int:
    """Return the bytes of the last-level caches of these CPUs together. Each cache counts once: every processor, and
    every die of a processor, has its own. 0 if the kernel does not report them."""
    last = {}
    for cpu in cpus:
        caches = _data_caches(root, cpu)
        if caches:
            size, sharers = caches[max(caches)]
            last[sharers] = size
    return sum(last.values())


def _data_caches(root: Path, cpu: int) -> dict[str, tuple[int, str]]:
    """Return the bytes of each level of a CPU's data caches, and the CPUs that share it."""
    caches: dict[str, tuple[int, str]] = {}
    for index in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        try:
            if (index / "type").read_text().strip() != "Instruction":
                size = parse_size((index / "size").read_text().strip())
                shared = index / "shared_cpu_list"
                sharers = shared.read_text().strip() if shared.exists() else ""
                caches[(index / "level").read_text().strip()] = size, sharers
        except (OSError, ValueError):
            continue
    return caches


def parse_size(text: str) -> int:
    """Return the bytes of a size as sysfs writes it: ``48K``, ``1M``, ``32768``. Raises ValueError for anything
    else."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)
