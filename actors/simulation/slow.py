"""Recorded devices and builders that take their time, so that a run of them lasts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devices.device_factory import open_device
from devices.protocol import BuildRequest, BuildResult, Device, MeasureRequest
from devices.simulated.recorded import RecordedBuilder
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Measurement


class SlowDevice:
    """A device that takes ``secs`` more for each candidate."""

    def __init__(self, device: Device, secs: float) -> None:
        self._device = device
        self._secs = secs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def measure(self, request: MeasureRequest) -> Measurement:
        time.sleep(self._secs)
        return self._device.measure(request)


@contextlib.contextmanager
def opened_slowly(secs: float, device: DeviceConfig, realtime: bool = True) -> Iterator[Any]:
    """:func:`devices.device_factory.open_device`, as a :class:`SlowDevice`."""
    with open_device(device, realtime) as opened:
        yield SlowDevice(opened, secs)


class SlowBuilder(RecordedBuilder):
    """A recorded builder that takes ``secs`` for each candidate."""

    def __init__(self, secs: float, *paths: Path) -> None:
        super().__init__(*paths)
        self._secs = secs

    def build(self, request: BuildRequest) -> BuildResult:
        time.sleep(self._secs)
        return super().build(request)
