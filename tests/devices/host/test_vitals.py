"""Temperature and clock from the files and libraries that a system has, or has not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from devices.host.vitals import read_vitals
from tests.helpers.jetson_files import JetsonFiles


def test_a_machine_without_sensors_has_no_vitals(tmp_path: Path) -> None:
    assert read_vitals(tmp_path) == {}


def test_the_hottest_zone_and_the_median_clock(tmp_path: Path) -> None:
    for name, text in {
        "class/thermal/thermal_zone0/temp": "41500\n",
        "class/thermal/thermal_zone1/temp": "67000\n",
        "class/thermal/thermal_zone2/temp": "off",
        "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1200000\n",
        "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2200000\n",
        "devices/system/cpu/cpu10/cpufreq/scaling_cur_freq": "1800000\n",
    }.items():
        path = tmp_path / "sys" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert read_vitals(tmp_path) == {"temperature_celsius": 67.0, "clock_hertz": 1.8e9}


class Library(SimpleNamespace):
    """The calls of nvidia-ml-py, for a GPU at 55 degrees and 1,410 MHz."""

    NVMLError = OSError
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    open = 0
    seen = "gpu 0"

    def nvmlInit(self) -> None:
        if self.broken:
            raise OSError("driver not loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return f"gpu {uuid}"

    def nvmlDeviceGetTemperature(self, gpu: str, sensor: int) -> int:
        assert (gpu, sensor) == (self.seen, 0)
        return 55

    def nvmlDeviceGetClockInfo(self, gpu: str, clock: int) -> int:
        assert (gpu, clock) == (self.seen, 1)
        return 1410


@pytest.mark.parametrize(
    ("broken", "found"), [(False, {"temperature_celsius": 55.0, "clock_hertz": 1.41e9}), (True, {})]
)
def test_a_gpu_tells_by_nvidias_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, broken: bool, found: dict[str, float]
) -> None:
    library = Library(broken=broken)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
    assert read_vitals(tmp_path, kind="cuda") == found
    assert library.open == 0


@pytest.mark.parametrize(("visible", "seen"), [("2,0", "gpu 2"), ("GPU-1f,GPU-2e", "gpu GPU-1f"), ("", "gpu 0")])
def test_the_gpu_that_cuda_sees_first_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str, seen: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setitem(sys.modules, "pynvml", Library(broken=False, seen=seen))  # type: ignore[arg-type]
    assert read_vitals(tmp_path, kind="cuda")["temperature_celsius"] == 55.0


def test_a_gpu_on_the_chip_has_the_temperature_of_its_zone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number, (kind, temperature) in enumerate([("cpu-thermal", "70000"), ("GPU-therm", "51000"), ("gpu-2", "off")]):
        zone = tmp_path / f"sys/class/thermal/thermal_zone{number}"
        zone.mkdir(parents=True)
        (zone / "type").write_text(f"{kind}\n")
        (zone / "temp").write_text(f"{temperature}\n")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert read_vitals(tmp_path, kind="cuda") == {"temperature_celsius": 51.0}


def test_a_gpu_without_that_library_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert read_vitals(tmp_path, kind="cuda") == {}


@pytest.mark.parametrize("jetpack", [5, 6])
def test_a_jetson_tells_of_its_gpu_by_files_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jetpack: int
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    orin = JetsonFiles(tmp_path, jetpack)
    cool = {"temperature_celsius": 45.5, "clock_hertz": 612e6, "hot": 0.0}
    assert read_vitals(tmp_path, kind="cuda") == cool
    # The hottest zone is neither a sensor that is off nor the power supply's, which always tells 100 degrees.
    assert read_vitals(tmp_path) == {"temperature_celsius": 49.0, "hot": 0.0}
    orin.cooling(2, "gpu-throttle-alert", 1)
    assert read_vitals(tmp_path, kind="cuda") == {**cool, "hot": 1.0}
    assert read_vitals(tmp_path)["hot"] == 0.0


def test_a_gpu_that_is_switched_off_is_as_hot_as_its_chip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    orin = JetsonFiles(tmp_path)
    orin.zone(1, "gpu-thermal", -256000)
    orin.gpu_clock(0, 306_000_000, 1_300_500_000)
    assert read_vitals(tmp_path, kind="cuda") == {"temperature_celsius": 49.0, "hot": 0.0}
