"""Leases of a run's devices: which device works, on which trials, and which one is idle.

All work of a device is leased: results that a device stores after its lease has ended are refused.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_tune.base.latency_estimate import CallSecs
from policies.measuring import health
from policies.runs.fleet import Fleet
from policies.runs.tasks import Trial


class Work(enum.Enum):
    """Kinds of work of a device."""

    NOTHING = enum.auto()
    CHECK = enum.auto()
    BATCH = enum.auto()
    SHOOT_OUT = enum.auto()


@dataclass(slots=True)
class DeviceSlot:
    """One device of the run, with its work."""

    device_id: str
    device_class: str
    work: Work = Work.NOTHING
    epoch: int = 0
    """Epoch of its last lease."""
    leased_secs: float = 0.0
    """Second of the run at which that lease began."""
    batch: list[Trial] = field(default_factory=list)
    """Trials on it under that lease."""
    check_due_secs: float = float("-inf")
    """Second of the run from which its probe is due."""
    failed_secs: float = float("-inf")
    """Second of the run at which its last check failed."""
    rests_until: float = float("-inf")
    """Second of the run before which a failed check is not tried again."""
    hot_batches: int = 0
    """Batches in a row at whose end heat lowered its clock."""
    cools_until: float = float("-inf")
    """Second of the run before which it is left alone to cool down."""
    detail: str = ""
    """Text of its last failure."""
    interruptions: int = 0
    """Times that the process that owns it was ended since its last measurement."""
    vitals: Mapping[str, float] = field(default_factory=dict)
    """Last readings of its hardware."""

    @property
    def is_leased(self) -> bool:
        """True while it works under a lease."""
        return self.work in (Work.BATCH, Work.SHOOT_OUT)


class Leases:
    """The devices of the classes that have tasks, with the lease of each."""

    def __init__(self, fleet: Fleet) -> None:
        self.slots: dict[str, DeviceSlot] = {}
        self._fleet = fleet
        # Idle devices by class, the one that has been idle for the longest first.
        self._idle: dict[str, dict[str, None]] = {}
        self._members: Counter[str] = Counter()  # devices by class
        self._leased: Counter[str] = Counter()  # devices with a lease by class
        self._on_devices: Counter[str] = Counter()  # candidates on them by class
        self._shown_speeds: dict[str, float] = {}  # by class
        self._calls: dict[str, CallSecs] = {}  # by class

    # Devices ---------------------------------------------------------------------------------------------------------

    def add_class(self, device_class: str) -> None:
        """Accept devices of one more class."""
        self._idle[device_class] = {}

    def add_device(self, device_id: str, device_class: str) -> None:
        """Add a device."""
        self._members[device_class] += 1
        self.slots[device_id] = DeviceSlot(device_id, device_class)

    def remove_device(self, device_id: str, now: float) -> tuple[str, list[Trial]]:
        """Remove a device and end its lease. Return its class and the trials that were on it."""
        slot = self.slots.pop(device_id)
        self._members[slot.device_class] -= 1
        self._idle[slot.device_class].pop(device_id, None)
        batch = slot.batch
        if slot.is_leased:
            self.end(slot)
            self._fleet.happened(device_id, health.Released(slot.epoch), now)
        return slot.device_class, batch

    @property
    def classes(self) -> tuple[str, ...]:
        """The device classes that have tasks."""
        return tuple(self._idle)

    def members(self, device_class: str) -> int:
        """Return the number of devices of a class."""
        return self._members[device_class]

    # Idle devices ----------------------------------------------------------------------------------------------------

    def set_idle(self, slot: DeviceSlot) -> None:
        """Make a device available for a lease."""
        self._idle[slot.device_class].setdefault(slot.device_id)

    def set_busy(self, slot: DeviceSlot) -> None:
        """Make a device unavailable for leases."""
        self._idle[slot.device_class].pop(slot.device_id, None)

    def idle_devices(self, device_class: str) -> list[str]:
        """Return the devices that could be leased now, the one that has been idle for the longest first."""
        return list(self._idle.get(device_class, ()))

    def first_idle(self, device_class: str) -> str:
        """Return the device that has been idle for the longest."""
        return next(iter(self._idle[device_class]))

    def idle_count(self, device_class: str) -> int:
        """Return the number of devices that could be leased now."""
        return len(self._idle[device_class])

    # Leases ----------------------------------------------------------------------------------------------------------

    def lease(self, device_id: str, work: Work, secs: float, now: float, batch: list[Trial] | None = None) -> int:
        """Lease an idle device for ``work`` that takes ``secs`` at most. Return the epoch of the lease."""
        slot = self.slots[device_id]
        self._idle[slot.device_class].pop(device_id)
        slot.work, slot.leased_secs = work, now
        self._leased[slot.device_class] += 1
        slot.epoch = self._fleet.lease(device_id, secs, now)
        if batch:
            slot.batch = batch
            self._on_devices[slot.device_class] += len(batch)
        return slot.epoch

    def holds(self, device_id: str, epoch: int) -> bool:
        """Return true while the device works under this lease; otherwise an answer under it is late."""
        slot = self.slots.get(device_id)
        return slot is not None and slot.is_leased and slot.epoch == epoch

    def release(self, device_id: str, now: float) -> None:
        """End the lease of a device whose work is done."""
        slot = self.slots[device_id]
        self.end(slot)
        self._fleet.happened(device_id, health.Released(slot.epoch), now)

    def end(self, slot: DeviceSlot) -> None:
        """End the work of a device. The caller tells the fleet the event that ends the lease."""
        self._leased[slot.device_class] -= 1
        self._on_devices[slot.device_class] -= len(slot.batch)
        slot.work = Work.NOTHING
        slot.batch = []

    @property
    def any_leased(self) -> bool:
        """True while a device has a lease."""
        return self._leased.total() > 0

    def occupied(self, device_class: str) -> tuple[int, int, int]:
        """Return the numbers of leased devices of the class, of idle devices, and of candidates on the leased
        devices."""
        return self._leased[device_class], len(self._idle[device_class]), self._on_devices[device_class]

    # Hardware --------------------------------------------------------------------------------------------------------

    @property
    def vitals(self) -> dict[str, Mapping[str, float]]:
        """Last hardware readings by device id."""
        return {each: slot.vitals for each, slot in self.slots.items() if slot.vitals}

    def shown_speed(self, device_class: str) -> float | None:
        """Return the speed at which people see the seconds of a class, relative to the unit speed of the stored
        seconds; None before one of its devices has measured for this store. Once known, it does not change."""
        if device_class not in self._shown_speeds:
            slots = (slot for slot in self.slots.values() if slot.device_class == device_class)
            for slot in slots:
                if "shown_speed" in slot.vitals:
                    self._shown_speeds[device_class] = slot.vitals["shown_speed"]
        return self._shown_speeds.get(device_class)

    def calls_timed(self, device_class: str, timed: CallSecs) -> None:
        """Take in the extra time of a call on a class, unless it is known from more kernels."""
        if timed.replaces(self._calls.get(device_class)):
            self._calls[device_class] = timed

    @property
    def call_secs(self) -> dict[str, float]:
        """Extra time of a call in a network by class, in seconds as people see them."""
        speeds = {name: self.shown_speed(name) for name in self._calls}
        return {name: calls.secs / speed for name, calls in self._calls.items() if (speed := speeds[name])}

    def restore(self, speeds: Mapping[str, float], calls: Mapping[str, CallSecs]) -> None:
        """Take in the shown speeds and the calls of classes that the store knows."""
        self._shown_speeds.update(speeds)
        self._calls.update(calls)
