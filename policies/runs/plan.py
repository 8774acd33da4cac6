"""Plan of a run: its tasks and devices, its limits, and the bounds of the work under way."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fleet_tune.base.domain import Limits, StopRule
from fleet_tune.base.results import Notice
from fleet_tune.base.timeouts import DeviceTimeouts
from policies.measuring.health import PROBE_EVERY_SECS
from policies.runs.events import (
    BuildersAdded,
    BuildersLeft,
    ClassAdded,
    ClassAwaited,
    DeviceAdded,
    DeviceAnswered,
    DeviceLeft,
    Event,
    ProcessRestarted,
    SketchesReady,
    TaskSkipped,
)
from policies.runs.planned_task import PlannedTask

DEVICE_PATIENCE_SECS = 120.0


@dataclass(frozen=True, slots=True)
class InFlightLimits:
    """Bounds of the work under way; within them it follows the devices (:mod:`policies.runs.stages.pace`)."""

    min_grant: int = 8
    """Candidates of one request to a searcher, at least."""
    max_grant: int = 256
    """Candidates of one request to a searcher, at most."""
    waiting_per_builder: int = 8
    """Builds that may wait for each builder."""
    in_flight: int = 16
    """Candidates of one device class that may be under way, however slow its devices are."""
    target_batch_secs: float = 1.5
    """Seconds that a batch should take on its device."""
    first_batch: int = 3
    """Candidates of a batch while no speed of the device class is known."""
    max_batch: int = 64
    """Candidates of a batch, at most."""
    min_batch: int = 6
    """Candidates of a batch, at least, unless fewer fill ``target_batch_secs``. A smaller batch begins only when every
    build under way has taken ``gather_secs`` already: no device waits for a slow build."""
    gather_secs: float = 2.0
    """Seconds after which a build counts as slow; see ``min_batch``."""
    max_builder_losses: int = 2
    """Number of lost builders at which a candidate is blamed."""
    max_kills: int = 3
    """Number of times that processes of a candidate are ended from outside at which the candidate is skipped."""
    max_skips_in_row: int = 5
    """Number of candidates skipped in a row, because their processes were ended from outside, at which the run ends."""
    backoff_secs: float = 1.0
    """Seconds until the first retry after a failure; each further failure in a row doubles them, up to
    ``max_backoff_secs``."""
    max_backoff_secs: float = 60.0
    """Longest wait for a retry; see :meth:`backoff_of`."""
    max_failed_starts: int = 3
    """Number of failed starts of every builder, with no build in between, at which the run ends."""
    max_absences: int = 30
    """Number of retries in a row at which every builder was absent, at which the run ends."""
    max_absent_backoff_secs: float = 5.0
    """Longest wait for the retry of an absent builder."""
    max_lost_proposals: int = 5
    """Number of proposals lost in a row over a task at which its search ends."""

    def backoff_of(self, failures: int) -> float:
        """Return the seconds until the retry after this number of ``failures`` in a row."""
        return min(self.max_backoff_secs, self.backoff_secs * 2.0 ** min(failures - 1, 30))


@dataclass(frozen=True, slots=True)
class Before:
    """State that a run takes over from a scheduler that was lost with its process. Everything else follows from the
    records and the states of devices."""

    secs: float = 0.0
    """Age of the run at that time."""
    budget_from_secs: float = 0.0
    """Second of the run from which the time budget counts, if all tasks are described."""
    notices: tuple[Notice, ...] = ()
    """Notices that people have seen."""
    device_changes: int = 0
    """See :class:`fleet_tune.base.results.Progress`."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """See :class:`fleet_tune.base.results.Progress`."""

    def with_restart(self, event: ProcessRestarted) -> Before:
        """Return the state after one more restart of a process."""
        times = self.restarts.get(event.role.value, 0) + event.times
        return replace(self, restarts={**self.restarts, event.role.value: times})


@dataclass(frozen=True)
class RunPlan:
    """Work of a run, its devices and its limits."""

    run_id: str
    tasks: tuple[PlannedTask, ...]
    devices: Mapping[str, str]
    """Class of each device by its id; empty for a device that has never answered and may join later."""
    builders: int
    """Number of builders that exist or have existed; they are numbered from 0."""
    left_builders: frozenset[int] = frozenset()
    """Builders that have left."""
    limits: Limits = field(default_factory=Limits)
    rule: StopRule = field(default_factory=StopRule)
    flow: InFlightLimits = field(default_factory=InFlightLimits)
    device_patience_secs: float = DEVICE_PATIENCE_SECS
    """Seconds that a run waits for a device when none can work any more."""
    check_every_secs: float = PROBE_EVERY_SECS
    """Interval of the probe on a device that works."""
    timeouts: Mapping[str, DeviceTimeouts] = field(default_factory=dict)
    """Timeouts of the fleet file, by device id. The candidates of other devices follow ``rule``."""
    window_wait_secs: float = 900.0
    """Longest wait for a quiet window, part of every lease."""
    build_timeout_secs: float | None = None
    """Timeout of every build; None to follow the builds of each task (:mod:`policies.measuring.build_limit`)."""
    awaited_classes: frozenset[str] = frozenset()
    """Device classes for which the network is being prepared."""
    before: Before = field(default_factory=Before)
    """State of the run so far, if it goes on in another process."""

    def after(self, event: Event, now: float = 0.0) -> RunPlan:
        """Return the plan with an event's changes of devices, classes, tasks and builders. A scheduler that takes over
        starts with this plan. ``now``: second of the run at which the event happened."""
        match event:
            case SketchesReady(task_id, rules, confirmation_trials, floor_secs):
                return self._with_task(task_id, rules, confirmation_trials, floor_secs, now)
            case TaskSkipped(task_id):
                return self._with_task(task_id, (), 0, None, now)
            case ClassAwaited(device_class) if device_class not in self._classes:
                return replace(self, awaited_classes=self.awaited_classes | {device_class})
            case ClassAdded(device_class, tasks):
                added = () if device_class in self._classes else tasks
                return replace(self, tasks=(*self.tasks, *added), awaited_classes=self.awaited_classes - {device_class})
            case BuildersAdded(builders):
                most = max(self.builders, 1 + max(builders, default=-1))
                # Numbers in between belong to builders that were started but cannot build, or do not answer yet.
                left = self.left_builders.union(range(self.builders, most)).difference(builders)
                return replace(self, builders=most, left_builders=left)
            case BuildersLeft(builders):
                return replace(self, left_builders=self.left_builders.union(builders))
            case DeviceAdded() if event.device_id not in self.devices:
                timeouts = {each: known for each, known in self.timeouts.items() if each != event.device_id}
                if event.timeouts is not None:
                    timeouts[event.device_id] = event.timeouts
                return replace(self, devices={**self.devices, event.device_id: ""}, timeouts=timeouts)
            case DeviceAnswered(device_id, device_class) if self._waits_for(device_id, device_class):
                return replace(self, devices={**self.devices, device_id: device_class})
            case ProcessRestarted():
                return replace(self, before=self.before.with_restart(event))
            case DeviceLeft(device_id):
                devices = {each: known for each, known in self.devices.items() if each != device_id}
                return replace(self, devices=devices)
        return self

    def without_tasks(self, tasks: Collection[PlannedTask]) -> RunPlan:
        """Return the plan without these tasks, which the run has refused since its tuning was over."""
        refused = {each.task.id for each in tasks}
        return replace(self, tasks=tuple(each for each in self.tasks if each.task.id not in refused))

    @property
    def _classes(self) -> set[str]:
        """Device classes that have tasks."""
        return {each.task.device_class.name for each in self.tasks}

    def _waits_for(self, device_id: str, device_class: str) -> bool:
        """Return true for a device that takes part from now on: its class has tasks, and it had not answered before."""
        classes = self._classes
        return device_class in classes and self.devices.get(device_id, device_class) not in classes

    def _with_task(
        self, task_id: str, rules: tuple[str, ...], confirmation_trials: int, floor_secs: float | None, now: float
    ) -> RunPlan:
        tasks = {each.task.id: each for each in self.tasks}
        floor = tasks[task_id].floor_secs if floor_secs is None else floor_secs
        tasks[task_id] = replace(tasks[task_id], rules=rules, confirmation_trials=confirmation_trials, floor_secs=floor)
        before = self.before if tasks[task_id].late else replace(self.before, budget_from_secs=now)
        return replace(self, tasks=tuple(tasks.values()), before=before)
