"""How the hardware of a device fares: temperature and clock, where the system offers them. Runs on the device.

Linux: the thermal zones, and cpufreq's current frequency. A GPU: NVIDIA's management library, by the package
``nvidia-ml-py`` where it is installed. What is not offered (a virtual machine has none of it) is left out.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
from pathlib import Path
from typing import Any

TEMPERATURE = "temperature_celsius"
CLOCK = "clock_hertz"


def read_vitals(root: Path = Path("/"), kind: str = "cpu") -> dict[str, float]:
    """``temperature_celsius`` (of the hottest zone, or the first GPU) and ``clock_hertz`` (the median core's, or the
    multiprocessors') of a device of this kind (``"cpu"`` or ``"cuda"``)."""
    return _gpu() if kind == "cuda" else _cpu(root)


def _cpu(root: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    zones = _numbers(root, "sys/class/thermal/thermal_zone*/temp")
    if zones:
        found[TEMPERATURE] = max(zones) / 1e3
    clocks = _numbers(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
    if clocks:
        found[CLOCK] = statistics.median(clocks) * 1e3
    return found


def _numbers(root: Path, pattern: str) -> list[float]:
    """What the files of this pattern say; a zone that is switched off cannot be read."""
    found = []
    for path in root.glob(pattern):
        with contextlib.suppress(OSError, ValueError):
            found.append(float(path.read_text()))
    return found


def _gpu() -> dict[str, float]:
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError:
        return {}
    found: dict[str, float] = {}
    with contextlib.suppress(library.NVMLError):
        library.nvmlInit()
        try:
            gpu = library.nvmlDeviceGetHandleByIndex(0)
            found[TEMPERATURE] = float(library.nvmlDeviceGetTemperature(gpu, library.NVML_TEMPERATURE_GPU))
            found[CLOCK] = float(library.nvmlDeviceGetClockInfo(gpu, library.NVML_CLOCK_SM)) * 1e6
        finally:
            library.nvmlShutdown()
    return found
