"""The states of a run's devices. Events of devices go through :mod:`policies.measuring.health`, and changes of state
become events that the store keeps."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_tune.base.device_state import LEASE_KINDS, Admin, Connectivity, DeviceEvent, DeviceState, Health
from policies.measuring import health
from policies.runs.commands import Command, Log, StoreDeviceEvents

_CALM = ("unknown", "good")


class Fleet:
    """States by device id. ``device_classes``: the class of each device, empty while it is not known. Every ``now`` is
    in seconds of the run.

    Changes are collected, and :meth:`drain` gives them out as commands.
    """

    def __init__(self, device_classes: Mapping[str, str], run_id: str, changes: int = 0) -> None:
        self.changes = changes  # number of changes so far, without leases
        self._unstored = 0  # commands whose changes are not durable yet
        self._changed: dict[str, None] = {}  # devices whose state has changed since the last take_changed
        self._run_id = run_id
        self._began_unix_secs = 0.0
        self._states = dict.fromkeys(device_classes, DeviceState())
        self._members: dict[str, list[str]] = {}
        for device_id, device_class in device_classes.items():
            self._members.setdefault(device_class, []).append(device_id)
        self._classes = dict(device_classes)
        self._left: set[str] = set()  # devices that have left; their state keeps the epochs of their leases
        self._usable: dict[str, dict[str, None]] = {each: {} for each in self._members}
        self._events: list[DeviceEvent] = []
        self._lines: list[Log] = []

    def __getitem__(self, device_id: str) -> DeviceState:
        return self._states[device_id]

    def __contains__(self, device_id: str) -> bool:
        return device_id in self._states and device_id not in self._left

    @property
    def words(self) -> dict[str, str]:
        """Each device's state in one word."""
        return {device_id: state.word for device_id, state in self._states.items() if device_id not in self._left}

    def restore(
        self,
        stored: Mapping[str, DeviceState],
        orders: Mapping[str, tuple[Admin, str]],
        began_unix_secs: float,
        now: float,
    ) -> None:
        """Begin with the states that earlier runs on the same store kept, and with the present orders.
        ``began_unix_secs``: unix time of second 0 of this run."""
        self._began_unix_secs = began_unix_secs
        for device_id in self._states:
            self._restore(
                device_id, stored.get(device_id, DeviceState()), orders.get(device_id, (Admin.ACTIVE, "")), now
            )

    def _restore(self, device_id: str, state: DeviceState, order: tuple[Admin, str], now: float) -> None:
        admin, reason = order
        self._set(device_id, health.restored(state, admin, self._unix(now)))
        if admin is not Admin.ACTIVE:
            self._note(device_id, "ordered", f"{admin}{_of(reason)}", now)

    def add(self, device_id: str, state: DeviceState, order: tuple[Admin, str], now: float) -> None:
        """Add a device whose class is not known yet. ``state``: its state at the end of earlier runs; ``order``: the
        present order of an operator for it. A device that had left comes back in the state in which it left."""
        last = self._states.get(device_id, state)
        self._left.discard(device_id)
        self._states[device_id] = last
        self._classes[device_id] = ""
        self._members.setdefault("", []).append(device_id)
        self._usable.setdefault("", {})
        self._restore(device_id, last, order, now)

    def remove(self, device_id: str, reason: str, now: float) -> None:
        """Remove a device. Its state is kept, since leases of a device that comes back under the same name must be
        newer."""
        device_class = self._classes[device_id]
        self._members[device_class].remove(device_id)
        self._usable[device_class].pop(device_id, None)
        self._left.add(device_id)
        self._note(device_id, "left", reason, now)

    def set_class(self, device_id: str, device_class: str) -> None:
        """Set the class of a device, which was not known before."""
        for members in self._members.values():
            if device_id in members:
                members.remove(device_id)
        self._members.setdefault(device_class, []).append(device_id)
        self._usable[self._classes[device_id]].pop(device_id, None)
        self._usable.setdefault(device_class, {})
        self._classes[device_id] = device_class
        self._set(device_id, self._states[device_id])

    def happened(self, device_id: str, event: health.Event, now: float) -> DeviceState:
        """Return the device's state after ``event``. Raises :class:`policies.measuring.health.NotAllowedError`."""
        before = self._states[device_id]
        change = health.step(before, event, self._unix(now))
        self._set(device_id, change.state)
        self._changed[device_id] = None
        if change.stored:
            # The end of a lease may also be the end of a draining, which is the more important event.
            drained = isinstance(event, health.Released) and change.state.admin is not before.admin
            self._note(device_id, "drained" if drained else event.kind, change.reason, now)
            if change.state.word != before.word:
                text = f"device {device_id} is {change.state.word}: {change.reason}"
                self._lines.append(Log("info" if change.state.word in _CALM else "warning", text))
        return change.state

    def lease(self, device_id: str, secs: float, now: float) -> int:
        """Lease the device for ``secs`` at most, and return the epoch. Raises NotAllowedError if the device may not
        work."""
        return self.happened(device_id, health.Leased(self._run_id, secs), now).lease.epoch

    def quarantine_is_over(self, device_id: str, now: float) -> bool:
        """Return true if the device may be on probation."""
        return self._unix(now) >= self._states[device_id].until_unix_secs

    def quarantine_ends(self, device_id: str) -> float:
        """Return the second of the run at which the device's quarantine is over, plus a little, since unix seconds are
        coarse."""
        return self._states[device_id].until_unix_secs - self._began_unix_secs + 1e-3

    def usable(self, device_class: str) -> list[str]:
        """Return the devices of a class that work or could work: online, good and active."""
        return list(self._usable.get(device_class, ()))

    def usable_count(self, device_class: str) -> int:
        """Return the number of devices of a class that work or could work."""
        return len(self._usable.get(device_class, ()))

    def hopeless(self, device_class: str) -> str:
        """Return, in words, why no device of the class will work without help from people; empty while one may work."""
        members = self._members.get(device_class, ())
        if any(health.may_return(self._states[each]) for each in members):
            return ""
        return ", ".join(f"{each} is {self._states[each].word}" for each in members)

    @property
    def is_kept(self) -> bool:
        """True when every change so far is durable."""
        return self._unstored == 0 and not self._events

    def events_stored(self, commands: int) -> None:
        """Note that the changes of this number of ``commands`` are durable."""
        self._unstored -= commands

    def take_changed(self) -> list[str]:
        """Return the devices whose state has changed since the last call."""
        changed, self._changed = list(self._changed), {}
        return changed

    def drain(self) -> list[Command]:
        """Return the lines to log and the changes to store since the last call."""
        commands: list[Command] = [*self._lines]
        if self._events:
            commands.append(StoreDeviceEvents(tuple(self._events)))
            self._unstored += 1
        self._lines, self._events = [], []
        return commands

    def _set(self, device_id: str, state: DeviceState) -> None:
        self._states[device_id] = state
        usable = self._usable[self._classes[device_id]]
        if _is_usable(state) and device_id not in self._left:
            usable.setdefault(device_id)
        else:
            usable.pop(device_id, None)

    def _note(self, device_id: str, kind: str, reason: str, now: float) -> None:
        state = self._states[device_id]
        self._events.append(DeviceEvent(device_id, self._run_id, kind, reason, state, self._unix(now)))
        self.changes += kind not in LEASE_KINDS

    def _unix(self, now: float) -> float:
        return self._began_unix_secs + now


def _is_usable(state: DeviceState) -> bool:
    return (state.connectivity, state.health, state.admin) == (Connectivity.ONLINE, Health.GOOD, Admin.ACTIVE)


def _of(reason: str) -> str:
    return f" ({reason})" if reason else ""
