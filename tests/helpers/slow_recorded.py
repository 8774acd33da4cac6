"""Recorded devices that take their time, so that a run of theirs lasts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from devices.opening import opened_device
from devices.protocol import Device, MeasureRequest
from fleet_tune.config.fleet_file import DeviceConfig
from fleet_tune.domain import Measurement

MEASURE_SECS = 0.02


class Slow:
    """A device that takes ``MEASURE_SECS`` for each candidate."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def measure(self, request: MeasureRequest) -> Measurement:
        time.sleep(MEASURE_SECS)
        return self._device.measure(request)


@contextlib.contextmanager
def opened_slowly(device: DeviceConfig, realtime: bool) -> Iterator[Any]:
    """In the place of :func:`devices.opening.opened_device`."""
    with opened_device(device, realtime) as opened:
        yield Slow(opened)
