"""Devices and device classes that join and leave a run under way.

For a device of a class without tasks the run waits twice: until the network is prepared for its class
(:class:`~policies.runs.events.ClassAwaited`, :class:`~policies.runs.events.ClassAdded`), and then until the device
answers, as for any other device. The limits of the run do not change. The tasks of the new class get the rest of the
time. While they are being described, an even share of the rest of a limit of trials is kept for them
(:meth:`policies.runs.stages.granting.Granting.room`)."""

from __future__ import annotations

from policies.runs.commands import Command, Log
from policies.runs.events import ClassAdded, ClassAwaited, DeviceAdded, DeviceAnswered, DeviceLeft
from policies.runs.fleet import Fleet
from policies.runs.plan import RunPlan
from policies.runs.stages.granting import Granting
from policies.runs.stages.measuring import MeasureStage
from policies.runs.stages.pace import Pace
from policies.runs.tasks import TaskTrials
from policies.runs.times.usage import Usage


class Membership:
    """Passes joins and leaves on to the objects whose state they change."""

    def __init__(
        self,
        plan: RunPlan,
        fleet: Fleet,
        measuring: MeasureStage,
        granting: Granting,
        pace: Pace,
        usage: Usage,
    ) -> None:
        self._plan = plan
        self._fleet = fleet
        self._measuring = measuring
        self._granting = granting
        self._pace = pace
        self._usage = usage

    @property
    def is_awaited(self) -> bool:
        """True while the network is being prepared for a class."""
        return self._measuring.patience.is_class_awaited

    def await_class(self, event: ClassAwaited) -> None:
        """Wait for the tasks of a class that has none yet."""
        if event.device_class not in self._granting.by_class:
            self._measuring.patience.await_class(event.device_class)

    def add_class(self, event: ClassAdded) -> list[TaskTrials]:
        """Add the tasks of a class, and return them; none of a class that has tasks already."""
        device_class = event.device_class
        self._measuring.patience.class_came(device_class)
        if not event.tasks or device_class in self._granting.by_class:
            return []
        self._pace.add(device_class)
        self._usage.add(device_class)
        self._measuring.add_class(device_class)
        added = [TaskTrials(each, self._plan.limits.task_trials) for each in event.tasks]
        for task in added:
            self._granting.add(task)
        return added

    def expect_device(self, event: DeviceAdded, now: float) -> None:
        """Wait for a device that is not part of the run yet."""
        if event.device_id not in self._fleet:
            self._fleet.add(event.device_id, event.state, (event.admin, event.reason), now)
            self._measuring.set_timeouts(event.device_id, event.timeouts)

    def use_device(self, event: DeviceAnswered) -> list[Command]:
        """Use a device that answers for the first time, if its class has tasks."""
        device_id, device_class = event.device_id, event.device_class
        is_new = device_id in self._fleet and device_id not in self._measuring.leases.slots
        if not is_new or device_class not in self._granting.by_class:
            return []
        self._fleet.set_class(device_id, device_class)
        self._measuring.add_device(device_id, device_class)
        return [Log("notice", f"device {device_id} answers: it is of class {device_class}")]

    def remove_device(self, event: DeviceLeft, now: float) -> list[Command]:
        """Remove a device from the run."""
        if event.device_id not in self._fleet:
            return []
        if event.device_id in self._measuring.leases.slots:
            self._measuring.remove_device(event.device_id, now)
        self._fleet.remove(event.device_id, event.reason, now)
        return [Log("notice", f"device {event.device_id} leaves: {event.reason}")]

    def deserted(self, now: float) -> tuple[list[TaskTrials], list[Command]]:
        """Return the tasks of classes that have had no device for longer than the run waits for one, and the log lines
        about such classes. These tasks get no more trials."""
        given_up, commands = self._measuring.patience.deserted(now)
        tasks = (task for each in given_up for task in self._granting.by_class[each])
        return [task for task in tasks if not task.finish_reason or task.in_flight], commands
