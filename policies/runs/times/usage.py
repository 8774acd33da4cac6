"""The usage of the devices of a run: what they do with their time, and so what bounds the run.

Every second of a device that can work is spent on measuring, or on waiting for something. More of what a class waits
for most would make the run faster. A class that hardly waits is limited by its devices themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fleet_tune.base.results import DeviceTime

# After this time a second counts 1/e.
_FORGET_SECS = 20.0


class Usage:
    """Device seconds by class and by their use, of the whole run and of its last seconds."""

    def __init__(self, classes: Iterable[str]) -> None:
        self._whole: dict[str, dict[DeviceTime, float]] = {}
        self._lately: dict[str, dict[DeviceTime, float]] = {}
        for device_class in classes:
            self.add(device_class)

    def add(self, device_class: str) -> None:
        """Add a class."""
        for times in (self._whole, self._lately):
            times[device_class] = dict.fromkeys(DeviceTime, 0.0)

    def count(self, secs: float, devices: Mapping[str, Mapping[DeviceTime, int]]) -> None:
        """Count ``secs`` seconds of every device. ``devices``: number of devices by class and by what they did."""
        kept = math.exp(-secs / _FORGET_SECS)
        for device_class, counts in devices.items():
            lately, whole = self._lately[device_class], self._whole[device_class]
            for what in lately:
                lately[what] *= kept
            for what, count in counts.items():
                lately[what] += count * secs
                whole[what] += count * secs

    def recount(self, device_class: str, what: DeviceTime, secs: float) -> None:
        """Move seconds of leases that were counted as measuring to their real use, ``what``."""
        for times in (self._lately[device_class], self._whole[device_class]):
            moved = min(secs, times[DeviceTime.MEASURE])
            times[DeviceTime.MEASURE] -= moved
            times[what] += moved

    @property
    def lately(self) -> dict[str, dict[str, float]]:
        """Shares of the devices' time by class in about the last half minute. A class without any counted time is left
        out."""
        return _shares(self._lately)

    @property
    def whole(self) -> dict[str, dict[str, float]]:
        """:attr:`lately`, but of all the time in which the run was tuning."""
        return _shares(self._whole)


def _shares(times: Mapping[str, Mapping[DeviceTime, float]]) -> dict[str, dict[str, float]]:
    totals = {device_class: sum(by_use.values()) for device_class, by_use in times.items()}
    return {
        device_class: {what.value: secs / totals[device_class] for what, secs in by_use.items() if secs > 0}
        for device_class, by_use in times.items()
        if totals[device_class] > 0
    }
