"""The measuring stage: which device measures which trials next, and what a lost device means for the trials on it.

It consists of the queue of built candidates (:mod:`.built_queue`), the leases (:mod:`.leases`), the readiness of
devices (:mod:`.readiness`) and the patience with device classes (:mod:`.class_patience`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from fleet_tune.base.device_state import HOT
from fleet_tune.base.domain import Measurement, Outcome
from fleet_tune.base.timeouts import DeviceTimeouts
from policies.measuring import health
from policies.measuring.deadline import batch_secs, oracle_secs
from policies.measuring.run_limit import run_limit
from policies.runs.commands import Command, Log, Measure, RecordFailure, RestartDevice
from policies.runs.events import BatchLost, BatchMeasured
from policies.runs.fleet import Fleet
from policies.runs.plan import RunPlan
from policies.runs.stages.built_queue import BuiltQueue
from policies.runs.stages.class_patience import ClassPatience
from policies.runs.stages.leases import Leases, Work
from policies.runs.stages.pace import Pace
from policies.runs.stages.readiness import Readiness
from policies.runs.tasks import TaskTrials, Trial, killed
from policies.runs.times.timers import Timers


class MeasureStage:
    """Batches of built candidates on devices."""

    def __init__(
        self,
        plan: RunPlan,
        fleet: Fleet,
        tasks: Mapping[str, TaskTrials],
        pace: Pace,
        timers: Timers,
        classes: Collection[str],
    ) -> None:
        """``classes``: the device classes of the tasks. Devices of other classes have no work and are left alone."""
        self._plan = plan
        self._fleet = fleet
        self._tasks = tasks
        self._pace = pace
        self.queue = BuiltQueue(tasks)
        self.leases = Leases(fleet)
        self.patience = ClassPatience(
            plan.device_patience_secs,
            fleet,
            tasks,
            self.leases,
            timers,
            plan.awaited_classes,
            plan.limits.trials,
        )
        self.readiness = Readiness(plan, fleet, self.leases, self.patience, timers)
        self._given_up: list[tuple[Trial, Measurement]] = []
        self._timeouts = dict(plan.timeouts)
        for device_class in classes:
            self.add_class(device_class)
        for device_id, device_class in plan.devices.items():
            if device_class in classes:
                self.add_device(device_id, device_class)

    # Devices ---------------------------------------------------------------------------------------------------------

    def add_class(self, device_class: str) -> None:
        """Accept the tasks and the devices of one more class."""
        self.queue.add_class(device_class)
        self.leases.add_class(device_class)

    def add_device(self, device_id: str, device_class: str) -> None:
        """Add a device of a class that has tasks."""
        self.patience.device_joins(device_class)
        self.leases.add_device(device_id, device_class)

    def remove_device(self, device_id: str, now: float) -> None:
        """Remove a device. Its trials are measured elsewhere."""
        device_class, batch = self.leases.remove_device(device_id, now)
        self.patience.device_left(device_class)
        self.queue.requeue(device_class, batch)

    def set_timeouts(self, device_id: str, timeouts: DeviceTimeouts | None) -> None:
        """Set the timeouts of a device that joins (see :attr:`RunPlan.timeouts`)."""
        self._timeouts.pop(device_id, None)
        if timeouts is not None:
            self._timeouts[device_id] = timeouts

    def limit_secs(self, device_id: str, task_id: str) -> float:
        """Return the seconds that measuring a candidate of the task may take on the device."""
        timeouts = self._timeouts.get(device_id)
        candidate_secs = self._plan.rule.timeout_secs if timeouts is None else timeouts.candidate_secs
        return run_limit(candidate_secs, self._tasks[task_id].floor_secs)

    def oracle_secs(self, device_id: str, task_id: str) -> float:
        """Return the seconds that the device may try to run the oracle of the task."""
        timeouts = self._timeouts.get(device_id)
        patience_secs = 0.0 if timeouts is None else timeouts.oracle_secs
        return oracle_secs(patience_secs, self._tasks[task_id].planned.oracle_secs)

    def end_tuning(self) -> None:
        """Drop the queue. The batches that are on devices end as usual."""
        self.readiness.end_tuning()
        self.queue.clear()

    # A batch begins --------------------------------------------------------------------------------------------------

    def start(self, now: float, builders_idle: bool) -> list[Command]:
        """Give a batch to every idle device for which there is enough work."""
        commands: list[Command] = []
        for device_class in self.leases.classes:
            while self.queue.count(device_class) and self.leases.idle_count(device_class):
                device_id = self.leases.first_idle(device_class)
                batch = self._next_batch(device_id, device_class, builders_idle)
                if not batch:
                    break
                commands.append(self._measure(device_id, batch, now))
            if self.leases.idle_count(device_class) and self.queue.has_suspects(device_class):
                # Another device may measure what the first one may not.
                for device_id in itertools.islice(self.leases.idle_devices(device_class), 1, None):
                    batch = self._next_batch(device_id, device_class, builders_idle)
                    if batch:
                        commands.append(self._measure(device_id, batch, now))
        return commands

    def _next_batch(self, device_id: str, device_class: str, builders_idle: bool) -> list[Trial]:
        """Take trials for one quiet window: as many as fit into its time, but not the share of the other idle devices.
        A batch has several trials, since the builders of a shared host stand still meanwhile. It is empty while there
        are too few trials and more are being built."""
        queued = self.queue.of_class(device_class)
        least = self._pace.least_batch(device_class)
        if len(queued) < least and not builders_idle and not any(trial.alone for trial in queued):
            return []
        share = -(-len(queued) // self.leases.idle_count(device_class))
        most = min(max(least, share), self._pace.batch(device_id, device_class))

        def may_try(trial: Trial) -> bool:
            return health.may_try(trial.losses, device_id, self._fleet.usable(device_class))

        return self.queue.take_batch(device_class, min(least, most), most, may_try, builders_idle)

    def _measure(self, device_id: str, batch: list[Trial], now: float) -> Measure:
        limits = {each: self.limit_secs(device_id, each) for each in {trial.candidate.task_id for trial in batch}}
        oracles = (self.oracle_secs(device_id, each) for each in limits)
        of_batch = (limits[trial.candidate.task_id] for trial in batch)
        deadline_secs = batch_secs(self._plan.window_wait_secs, of_batch, oracles)
        epoch = self.leases.lease(device_id, Work.BATCH, deadline_secs, now, batch)
        incumbents = {each: self._tasks[each].ranking.incumbent for each in limits}
        candidates = tuple(trial.candidate for trial in batch)
        return Measure(device_id, epoch, candidates, incumbents, deadline_secs, limits)

    # A batch ends ----------------------------------------------------------------------------------------------------

    def measured(self, event: BatchMeasured, now: float) -> list[Command]:
        """Apply the result of a batch to the device and to its trials."""
        device_id = event.device_id
        slot = self.leases.slots[device_id]
        batch = slot.batch
        slot.vitals = event.vitals
        told: list[Command] = []
        if event.vitals:
            told = self.readiness.measured(slot, event.vitals.get(HOT, 0.0) > 0, now)
        if event.calls is not None:
            self.leases.calls_timed(slot.device_class, event.calls)
        lost = [trial for trial in batch if event.outcomes.get(trial.candidate.id) is Outcome.DEVICE_LOST]
        ended = [trial for trial in batch if event.outcomes.get(trial.candidate.id) is Outcome.KILLED]
        measured = len(event.outcomes) - len(lost) - len(ended)
        if measured:
            slot.interruptions = 0
            self._fleet.happened(device_id, health.Measured(measured), now)
            if not lost:
                waited_secs = sum(event.waits.values())
                self._pace.measured(device_id, slot.device_class, measured, now - slot.leased_secs - waited_secs)
        untried = [trial for trial in batch if trial.candidate.id not in event.outcomes]
        self._requeue_killed(slot.device_class, ended, "that measured it", f"on device {device_id}")
        if event.detail:
            return self.lost(device_id, [*lost, *untried], lost[0] if lost else None, event.detail, now)
        self.leases.release(device_id, now)
        self.queue.requeue(slot.device_class, untried)
        return told

    def postponed(self, device_id: str, now: float) -> None:
        """Requeue a batch of which no result counts: other devices may take it."""
        slot = self.leases.slots[device_id]
        batch = slot.batch
        self.leases.release(device_id, now)
        self.queue.requeue(slot.device_class, batch)

    def batch_lost(self, event: BatchLost, now: float) -> list[Command]:
        """Requeue the batch of a lost process on our side. It is not known at which candidate the process ended, if at
        any, so each is measured alone from now on. If the process was ended from outside, neither the device nor a
        candidate is blamed."""
        commands: list[Command] = [Log("warning", f"device {event.device_id}: {event.detail}")]
        if event.hangs:
            commands.append(RestartDevice(event.device_id))
        slot = self.leases.slots[event.device_id]
        batch = slot.batch
        if event.outside:
            self.leases.end(slot)
            slot.detail = event.detail
            self.readiness.interrupted(slot, event.detail, now)
            self._requeue_killed(slot.device_class, batch, f"that owns device {event.device_id}", event.detail)
            return commands
        if len(batch) > 1:
            for trial in batch:
                trial.alone = True
        return commands + self.lost(event.device_id, batch, batch[0] if len(batch) == 1 else None, event.detail, now)

    def lost(
        self, device_id: str, batch: Sequence[Trial], suspect: Trial | None, detail: str, now: float
    ) -> list[Command]:
        """Requeue ``batch`` of a lost device. ``suspect``: the trial that it was running; None if it ran none, or if it
        is not known which."""
        slot = self.leases.slots[device_id]
        self.leases.end(slot)
        slot.detail = detail
        self._fleet.happened(device_id, health.Lost(detail, suspect.candidate.id if suspect else ""), now)
        commands: list[Command] = []
        if suspect is not None:
            suspect.losses.append(device_id)
            if health.is_poison(len(suspect.losses)):
                batch = [trial for trial in batch if trial is not suspect]
                commands.append(self._blame(suspect, detail, now))
        self.queue.requeue(slot.device_class, batch)
        return commands

    def _blame(self, poison: Trial, detail: str, now: float) -> Command:
        """Record the candidate as a failure, and acquit the devices that it took down."""
        where = ", ".join(poison.losses)
        text = f"poison: its device was lost {len(poison.losses)} times ({where}): {detail}"
        for device_id in dict.fromkeys(poison.losses):
            self._fleet.happened(device_id, health.Acquitted(poison.candidate.id), now)
        return RecordFailure(poison.candidate, Measurement(Outcome.RUN_ERROR, detail=text))

    def _requeue_killed(self, device_class: str, trials: Iterable[Trial], what: str, detail: str) -> None:
        """Requeue trials whose process was ended from outside behind all others, so that no other trial waits for them.
        From the second time on each is measured alone, and in the end it is given up."""
        back = []
        for trial in trials:
            trial.kills += 1
            trial.alone = trial.alone or trial.kills > 1
            if trial.kills >= self._plan.flow.max_kills and self.queue.is_under_way(trial):
                self._given_up.append((trial, killed(what, trial.kills, detail)))
            else:
                back.append(trial)
        self.queue.requeue(device_class, back, behind=True)

    def drain_given_up(self) -> list[tuple[Trial, Measurement]]:
        """Return the trials that were given up since the last call, with the reason of each."""
        given_up, self._given_up = self._given_up, []
        return given_up
