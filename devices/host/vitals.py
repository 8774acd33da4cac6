"""Temperature and clock of a device's hardware, where the system offers them. Runs on the device.

Linux: the thermal zones, and cpufreq's current frequency. A GPU: NVIDIA's management library, by the package
``nvidia-ml-py`` where it is installed, else the thermal zones that are named after it (a Jetson's). Values that the
system does not offer (a virtual machine offers none) are missing in the result.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
from pathlib import Path
from typing import Any

TEMPERATURE = "temperature_celsius"
CLOCK = "clock_hertz"


def read_vitals(root: Path = Path("/"), kind: str = "cpu") -> dict[str, float]:
    """Return ``temperature_celsius`` (of the hottest zone, or the GPU) and ``clock_hertz`` (of the median core, or the
    multiprocessors) of a device of this kind: ``"cpu"``, or ``"cuda"`` for the first GPU that this process sees."""
    if kind != "cuda":
        return _cpu(root)
    return _gpu(os.environ.get("CUDA_VISIBLE_DEVICES", "")) or _gpu_zones(root)


def _cpu(root: Path) -> dict[str, float]:
    vitals: dict[str, float] = {}
    zones = _numbers(root, "sys/class/thermal/thermal_zone*/temp")
    if zones:
        vitals[TEMPERATURE] = max(zones) / 1e3
    clocks = _numbers(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
    if clocks:
        vitals[CLOCK] = statistics.median(clocks) * 1e3
    return vitals


def _gpu_zones(root: Path) -> dict[str, float]:
    """Return the temperature of a GPU on the chip: "GPU-therm" on one Jetson, "gpu-thermal" on another. A card has no
    zone."""
    zones: list[float] = []
    for kind in root.glob("sys/class/thermal/thermal_zone*/type"):
        with contextlib.suppress(OSError, ValueError):
            if "gpu" in kind.read_text().lower():
                zones.append(float((kind.parent / "temp").read_text()))
    return {TEMPERATURE: max(zones) / 1e3} if zones else {}


def _numbers(root: Path, pattern: str) -> list[float]:
    """Return the numbers in the files of this pattern. A zone that is switched off cannot be read."""
    numbers = []
    for path in root.glob(pattern):
        with contextlib.suppress(OSError, ValueError):
            numbers.append(float(path.read_text()))
    return numbers


def _gpu(visible: str) -> dict[str, float]:
    """Return the vitals of the first visible GPU.

    ``visible``: numbers or UUIDs with commas between, as CUDA takes them; the first is this server's device 0. CUDA
    counts as this library does with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, or where all GPUs are alike.
    """
    first = visible.split(",")[0].strip()
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError:
        return {}
    vitals: dict[str, float] = {}
    with contextlib.suppress(library.NVMLError):
        library.nvmlInit()
        try:
            if not first or first.isdigit():
                gpu = library.nvmlDeviceGetHandleByIndex(int(first or 0))
            else:
                gpu = library.nvmlDeviceGetHandleByUUID(first)
            vitals[TEMPERATURE] = float(library.nvmlDeviceGetTemperature(gpu, library.NVML_TEMPERATURE_GPU))
            vitals[CLOCK] = float(library.nvmlDeviceGetClockInfo(gpu, library.NVML_CLOCK_SM)) * 1e6
        finally:
            library.nvmlShutdown()
    return vitals
