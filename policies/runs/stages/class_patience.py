"""Patience of a run with a device class: how long the run waits if no device of the class can work, or none is left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fleet_tune.base.errors import DevicesLostError
from policies.runs.commands import Abort, Command, Log
from policies.runs.fleet import Fleet
from policies.runs.stages.leases import DeviceSlot, Leases, Work
from policies.runs.tasks import TaskTrials, trials_left
from policies.runs.times.timers import Timers


class ClassPatience:
    """Hopeless classes (no device can work) and deserted ones (no device is left), with the second since when each is
    so.

    ``patience_secs``: longest wait. ``awaited``: device classes for which the network is being prepared. ``trials``:
    limit of the run's trials; None for no limit.
    """

    def __init__(
        self,
        patience_secs: float,
        fleet: Fleet,
        tasks: Mapping[str, TaskTrials],
        leases: Leases,
        timers: Timers,
        awaited: Iterable[str],
        trials: int | None,
    ) -> None:
        self._trials = trials
        self._patience_secs = patience_secs
        self._fleet = fleet
        self._tasks = tasks
        self._leases = leases
        self._timers = timers
        self._awaited = set(awaited)
        self._hopeless_since: dict[str, float] = {}
        self._deserted_since: dict[str, float] = {}

    # Awaited classes -------------------------------------------------------------------------------------------------

    @property
    def is_class_awaited(self) -> bool:
        """True while the network is being prepared for a class."""
        return bool(self._awaited)

    def await_class(self, device_class: str) -> None:
        """Wait for the tasks of a class."""
        self._awaited.add(device_class)

    def class_came(self, device_class: str) -> None:
        """End the wait for the tasks of a class."""
        self._awaited.discard(device_class)

    # Hopeless classes ------------------------------------------------------------------------------------------------

    def give_up_if_hopeless(self, slot: DeviceSlot, now: float) -> list[Command]:
        """Warn if no device of the slot's class can work. End the run once it has waited for long enough, unless
        another class goes on, the class has nothing to tune, or a device of it is being checked."""
        device_class = slot.device_class
        why = self._fleet.hopeless(device_class)
        if not why:
            return self.hopeful(device_class)
        commands: list[Command] = []
        since = self._hopeless_since.get(device_class, now)
        if device_class not in self._hopeless_since:
            self._hopeless_since[device_class] = now
            told = f"no device of class {device_class} can work: {slot.detail} ({why})"
            others = "its tasks wait for one" if self._others_go_on(device_class) else ""
            then = others or f"the run ends in {self._patience_secs:.0f} s unless one comes back"
            commands.append(Log("warning", f"{told}; {then}"))
        if now < since + self._patience_secs:
            self._timers.at(since + self._patience_secs, slot.device_id)
            return commands
        if (
            self._others_go_on(device_class)
            or not self._is_wanted(device_class)
            or self._is_checking(device_class, since)
        ):
            self._timers.at(now + self._patience_secs / 8, slot.device_id)
            return commands
        waited_secs = now - since
        error = DevicesLostError(
            f"no device of class {device_class} has answered for {waited_secs:.0f} s: {slot.detail} ({why})",
            "bring one back and run the same command again: it resumes",
        )
        return [*commands, Abort(error)]

    def hopeful(self, device_class: str) -> list[Command]:
        """Note that a device of the class works, or may work again without help."""
        if self._hopeless_since.pop(device_class, None) is None:
            return []
        return [Log("notice", f"a device of class {device_class} answers again")]

    def is_lost(self, device_class: str, now: float) -> bool:
        """Return true if a class has had no device that can work, or no device at all, for longer than the patience."""
        since = min(each.get(device_class, math.inf) for each in (self._hopeless_since, self._deserted_since))
        return now >= since + self._patience_secs

    def _others_go_on(self, device_class: str) -> bool:
        """Return true if another class has a device that can work and something to tune, or is being prepared."""
        if self._awaited:
            return True
        stuck = {device_class} | self._hopeless_since.keys() | self._deserted_since.keys()
        others = {task.device_class for task in self._tasks.values()} - stuck
        return any(self._is_wanted(each) for each in others)

    def _is_checking(self, device_class: str, since: float) -> bool:
        """Return true if a device of the class is being checked, and no check of it has failed since the second
        ``since``."""
        slots = (slot for slot in self._leases.slots.values() if slot.device_class == device_class)
        return any(slot.work is Work.CHECK and slot.failed_secs < since for slot in slots)

    def _is_wanted(self, device_class: str) -> bool:
        """Return true if there is something to tune for the class."""
        of_class = [task for task in self._tasks.values() if task.device_class == device_class]
        if any(task.in_flight for task in of_class):
            return True
        no_trials = self._trials is not None and trials_left(self._trials, self._tasks.values()) <= 0
        return not no_trials and any(task.wanted(1) for task in of_class)

    # Deserted classes ------------------------------------------------------------------------------------------------

    def device_joins(self, device_class: str) -> None:
        """Note that a device is about to join the class."""
        if not self._leases.members(device_class):
            self._deserted_since.pop(device_class, None)

    def device_left(self, device_class: str) -> None:
        """Note that a device has left the class."""
        if not self._leases.members(device_class):
            self._hopeless_since.pop(device_class, None)  # the wait for another one would begin anew

    def deserted(self, now: float) -> tuple[list[str], list[Command]]:
        """Return the classes that have had no device for longer than the patience, and a warning for each class whose
        last device has left just now."""
        given_up: list[str] = []
        commands: list[Command] = []
        for device_class in self._leases.classes:
            if self._leases.members(device_class):
                continue
            if device_class not in self._deserted_since:
                self._deserted_since[device_class] = now
                # The space sets it apart from the names of devices.
                self._timers.at(now + self._patience_secs, f"class {device_class}")
                wait = f"its tasks wait {self._patience_secs:.0f} s for another"
                commands.append(Log("warning", f"no device of class {device_class} is left: {wait}"))
            elif now < self._deserted_since[device_class] + self._patience_secs:
                continue
            elif self._others_go_on(device_class):  # its host may come back meanwhile
                self._timers.at(now + self._patience_secs / 8, f"class {device_class}")
            else:
                given_up.append(device_class)
        return given_up, commands
