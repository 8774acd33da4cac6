"""The occupation of the devices of a class: their work, and what idle devices wait for."""

from __future__ import annotations

from fleet_tune.base.results import DeviceTime
from policies.runs.stages.building import BuildStage
from policies.runs.stages.granting import Granting
from policies.runs.stages.leases import Leases
from policies.runs.tasks import in_flight


class DeviceTimeShares:
    """Shares of the devices' time by kind of work, from a run's ``builds``, ``leases`` and ``granting``."""

    def __init__(self, builds: BuildStage, leases: Leases, granting: Granting) -> None:
        self._builds, self._leases, self._granting = builds, leases, granting
        self._behind: dict[str, tuple[str, float]] = {}

    @property
    def behind(self) -> dict[str, tuple[str, float]]:
        """Shared devices that this run waits for, by name: the title of the run that has the turn, and the second since
        when this run waits."""
        return dict(self._behind)

    def waits(self, device_id: str, behind: str, now: float) -> None:
        """Note that this run waits for the device, since it is the turn of another run with the title ``behind``. An
        empty title ends the wait."""
        _, since = self._behind.pop(device_id, ("", now))
        if behind and device_id in self._leases.slots:
            self._behind[device_id] = behind, since

    def of(self, device_class: str) -> dict[DeviceTime, int]:
        """Return the number of devices of the class by what they do: measure, wait for this run's turn, or wait for
        work, which is told by what delays it."""
        leased, idle, measured = self._leases.occupied(device_class)
        slots = [self._leases.slots[each] for each in self._behind if each in self._leases.slots]
        behind = sum(slot.is_leased and slot.device_class == device_class for slot in slots)
        counts = {DeviceTime.MEASURE: leased - behind, DeviceTime.TURN: behind}
        return {**counts, self._awaited(device_class, measured): idle} if idle else counts

    def _awaited(self, device_class: str, measured: int) -> DeviceTime:
        """Return what idle devices wait for; ``measured``: candidates that are on other devices."""
        builds = self._builds.under_way(device_class)
        if builds and self._builds.saturated:
            return DeviceTime.BUILD
        if self._granting.is_asking(device_class):
            return DeviceTime.SEARCH
        if builds:
            return DeviceTime.BUILD
        # A candidate that is neither with a builder nor on a device has been measured, and its record is not known to
        # be durable.
        waits_for_records = in_flight(self._granting.by_class[device_class]) > measured
        return DeviceTime.COMMIT if waits_for_records else DeviceTime.TASKS
