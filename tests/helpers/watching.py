"""Recorded devices that note which children of builders stand still while they measure."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from devices.device_factory import open_device
from devices.protocol import Device, MeasureRequest
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Measurement

_BUILDS = "devices.builds.worker"


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
            with contextlib.suppress(psutil.Error, OSError):
                if process.uids().real == os.getuid() and _BUILDS in process.cmdline():
                    temporary = Path(process.environ().get("TMPDIR", "/"))
                    if temporary.parent == self._folder:
                        stopped = process.status() == psutil.STATUS_STOPPED or _stops_next(process.pid)
                        seen.setdefault(temporary.name, []).append(stopped)
        return seen


def _stops_next(pid: int) -> bool:
    """Return true where SIGSTOP is pending: on a busy host a process waits for the CPU, and stops before it goes on."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
    return bool(pending >> (signal.SIGSTOP - 1) & 1)


@contextlib.contextmanager
def opened_watching(folder: Path, data: Path, device: DeviceConfig, realtime: bool) -> Iterator[Any]:
    """Take the place of :func:`devices.device_factory.open_device`; notes are written to ``folder/NAME.seen``, of
    children in the folder above it."""
    recorded = device.model_copy(update={"connect": f"recorded:{data}"})
    with open_device(recorded, realtime) as opened:
        yield StoreSubscription(opened, folder.parent, folder / f"{device.name}.seen")
