"""Temperature and clock of a device's hardware, where the system offers them. Runs on the device.

Linux: the thermal zones, and cpufreq's current frequency. A GPU on the chip (a Jetson's): the thermal zones that are
named after it, and devfreq's frequency. Any other GPU: NVIDIA's management library, by the package ``nvidia-ml-py``
where it is installed. Values that the system does not offer (a virtual machine offers none) are missing in the result.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devices.host.board import gpu_clock_folder
from devices.host.clock_watch import ClockWatch
from devices.host.system_files import number_of
from fleet_tune.base.device_state import HOT

TEMPERATURE = "temperature_celsius"
CLOCK = "clock_hertz"

# A Jetson reports -256 degrees for a sensor that is switched off.
_LEAST_CELSIUS = -100.0


def read_vitals(root: Path = Path("/"), kind: str = "cpu") -> dict[str, float]:
    """Return ``temperature_celsius`` (of the hottest zone, or the GPU) and ``clock_hertz`` (of the median core, or the
    multiprocessors) of a device of this kind: ``"cpu"``, or ``"cuda"`` for the first GPU that this process sees. Also
    ``hot``, if the system reports it: 1 while heat lowers the clock, else 0."""
    watch = ClockWatch(root, kind)
    hot = {} if watch.is_blind else {HOT: float(bool(watch.look().heat))}
    if kind != "cuda":
        return _cpu(root) | hot
    folder = gpu_clock_folder(root)
    if folder is not None:
        return _gpu_on_chip(root, folder) | hot
    card = _gpu(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return (card or _hottest(root, lambda name: "gpu" in name)) | hot


def _cpu(root: Path) -> dict[str, float]:
    # The zone of a Jetson's power supply always reports the same temperature, up to 100 degrees.
    vitals = _hottest(root, lambda kind: not kind.startswith("pmic"))
    clocks = _numbers(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
    if clocks:
        vitals[CLOCK] = statistics.median(clocks) * 1e3
    return vitals


def _gpu_on_chip(root: Path, folder: Path) -> dict[str, float]:
    """Return the vitals of a GPU on the chip. ``folder`` has the file of its clock. Its thermal zone is "GPU-therm"
    with JetPack 5, "gpu-thermal" with JetPack 6. If the zone reports nothing, as while the GPU is switched off, the
    zone "tj" is used: the hottest place of the chip."""
    vitals = _hottest(root, lambda kind: "gpu" in kind) or _hottest(root, lambda kind: kind.startswith("tj"))
    clock = number_of(folder / "cur_freq")
    return {**vitals, CLOCK: float(clock)} if clock > 0 else vitals  # 0 while it is switched off


def _hottest(root: Path, counts: Callable[[str], bool]) -> dict[str, float]:
    """Return the temperature of the hottest thermal zone of which ``counts(type in lower case)`` is true; empty if
    there is none."""
    zones: list[float] = []
    for file in root.glob("sys/class/thermal/thermal_zone*/temp"):
        with contextlib.suppress(OSError, ValueError):
            kind = file.with_name("type")
            celsius = float(file.read_text()) / 1e3
            if celsius > _LEAST_CELSIUS and counts(kind.read_text().lower() if kind.exists() else ""):
                zones.append(celsius)
    return {TEMPERATURE: max(zones)} if zones else {}


def _numbers(root: Path, pattern: str) -> list[float]:
    """Return the numbers in the files of this pattern. A zone that is switched off cannot be read."""
    numbers = []
    for path in root.glob(pattern):
        with contextlib.suppress(OSError, ValueError):
            numbers.append(float(path.read_text()))
    return numbers


def _gpu(visible: str) -> dict[str, float]:
    """Return the vitals of the first visible GPU.

    ``visible``: numbers or UUIDs separated by commas, as CUDA takes them; the first is this server's device 0. CUDA
    numbers GPUs as NVIDIA's library does if ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set, or if all GPUs are alike.
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
