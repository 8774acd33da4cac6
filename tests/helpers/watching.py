"""Recorded devices that note which children of builders stand still while they measure."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from devices.device_factory import open_device
from devices.protocol import Device, MeasureRequest
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Measurement

_BUILDS = "devices.builds.worker"
# A process that waits for the disk stops when it returns from there.
_STOPPED = {psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP}


class StoreSubscription:
    """A device that writes a line into ``notes`` before each measurement, as long as there are few: for the children of
    builders whose temporary files are below ``folder``, by the name of the folder there, whether they stand still."""

    def __init__(self, device: Device, folder: Path, notes: Path) -> None:
        self._device = device
        self._folder = folder
        self._notes = notes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def measure(self, request: MeasureRequest) -> Measurement:
        with self._notes.open("a") as notes:
            if notes.tell() < 10_000:
                notes.write(json.dumps(self._seen()) + "\n")
        return self._device.measure(request)

    def _seen(self) -> dict[str, list[bool]]:
        seen: dict[str, list[bool]] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.uids().real == os.getuid() and _BUILDS in process.cmdline():
                    temporary = Path(process.environ().get("TMPDIR", "/"))
                    if temporary.parent == self._folder:
                        stopped = process.status() in _STOPPED
                        seen.setdefault(temporary.name, []).append(stopped)
        return seen


@contextlib.contextmanager
def opened_watching(folder: Path, data: Path, device: DeviceConfig, realtime: bool) -> Iterator[Any]:
    """Take the place of :func:`devices.device_factory.open_device`; notes are written to ``folder/NAME.seen``, of
    children in the folder above it."""
    recorded = device.model_copy(update={"connect": f"recorded:{data}"})
    with open_device(recorded, realtime) as opened:
        yield StoreSubscription(opened, folder.parent, folder / f"{device.name}.seen")
