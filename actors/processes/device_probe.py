"""The probe of a device, and the speed that it shows."""

from __future__ import annotations

import time

from actors.clients.recorder import RecorderClient
from actors.processes.device_connection import DeviceConnection
from fleet_tune.base.errors import DeviceUnreachableError, ProbeError
from fleet_tune.base.power_text import mode_of
from fleet_tune.base.records.stores.reader import split_task_id
from policies.measuring.speed import Speedometer

# Number of probes in a row in the first quiet window of a run, and the limit of their time. Their median is the usual
# time. The first probe after other work on the host may take half as long again.
_FIRST_PROBES = 15
_FIRST_SECS = 2.0


class DeviceProbe:
    """Runs the probe of one device, and keeps the speed that it shows."""

    def __init__(self, device_id: str, connection: DeviceConnection) -> None:
        self._device_id = device_id
        self._connection = connection
        self.speed = Speedometer()
        self._shown_speed: float | None = None
        """Speed at which people see the device's class; None until the store has told it."""

    def secs_in(self, power: str) -> float:
        """Return the seconds of one run of the probe. ``power``: the power mode in which the run measures the device,
        empty if it is not known. Raises DeviceUnreachableError, and ProbeError also if the device is in another
        mode."""
        now = self._connection.device.power() if power else ""
        if now and mode_of(now) != mode_of(power):
            reason = f"its power mode is {now}, and this run measures it in {power}"
            raise ProbeError(self._device_id, f"{reason}: set it back, or end the run and begin it again")
        return self._secs()

    def secs_or(self, before_secs: float) -> float:
        """Return the seconds of one run of the probe, or ``before_secs`` if the probe fails: the measurements are
        already there, and the next batch finds out about the failure."""
        try:
            return self._secs()
        except (DeviceUnreachableError, ProbeError):
            return before_secs

    def first_secs(self, recorder: RecorderClient, task_id: str, power: str) -> float:
        """Return the seconds of the probe at the beginning of a quiet window. In the first window the probe runs
        several times. The store is told the usual seconds. It returns the unit of the device's speed, and the speed at
        which people see the device's class. Raises the errors of :meth:`secs_in`."""
        secs = self.secs_in(power)
        if self._shown_speed is None:
            deadline = time.monotonic() + _FIRST_SECS
            for _ in range(_FIRST_PROBES - 1):
                if time.monotonic() >= deadline:
                    break
                secs = self._secs()
            told = self._device_id, split_task_id(task_id)[1], self.speed.usual_secs
            self.speed.unit_secs, self._shown_speed = recorder.probed_and_wait(*told)
        return secs

    def speeds(self, probe_secs: float) -> dict[str, float]:
        """Return, for the vitals, the speed of the device by a probe, relative to the speed at which people see its
        class, and that speed. To be called after :meth:`first_secs`."""
        assert self._shown_speed is not None
        return {"speed": self.speed.speed(probe_secs) / self._shown_speed, "shown_speed": self._shown_speed}

    def _secs(self) -> float:
        secs = self._connection.device.probe_secs()
        self.speed.probed(secs)
        return secs
