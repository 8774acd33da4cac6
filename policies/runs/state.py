"""A run as a pure state machine: :meth:`RunState.handle` takes an event and returns the commands that follow.

The state consists of what the records say and of the work under way: proposals, builds, batches on devices, shoot-outs.
The driver of the state (:class:`actors.scheduling.scheduler.Scheduler`, or a test in virtual time) carries out the
commands. A command that takes time ends with one event, which the driver hands in. A lost answer is an event too. An
answer of a device that was given up comes under an old lease and is ignored. ``now`` is in seconds since the run began
and never goes back; it is the only clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fleet_tune.base.results import Progress
from policies.measuring import health
from policies.measuring.build_limit import UNKNOWN_SECS
from policies.runs.batch_results import BatchResult, BatchResults
from policies.runs.build_results import BuildResults
from policies.runs.commands import (
    Abort,
    Command,
    Log,
)
from policies.runs.events import (
    AdminRequested,
    BatchLost,
    BatchMeasured,
    BatchPostponed,
    BuilderLost,
    BuildersAdded,
    BuildersLeft,
    Built,
    ClassAdded,
    ClassAwaited,
    DeviceAdded,
    DeviceAnswered,
    DeviceEventsStored,
    DeviceInUse,
    DeviceLeft,
    DeviceProbed,
    DeviceProbeFailed,
    DevicesRestored,
    DeviceUnreachable,
    Event,
    NoticePosted,
    ProcessRestarted,
    ProposalLost,
    Proposed,
    RecordsCaughtUp,
    RecordsCommitted,
    ShootOutMeasured,
    SketchesReady,
    StopRequested,
    TaskSkipped,
    Tick,
)
from policies.runs.fleet import Fleet
from policies.runs.kill_counts import KillCounts
from policies.runs.membership import Membership
from policies.runs.notices import Notices
from policies.runs.phase import Phase
from policies.runs.plan import RunPlan
from policies.runs.record_intake import RecordIntake
from policies.runs.run_end import RunEnd
from policies.runs.stages.building import Buildable, BuildStage
from policies.runs.stages.device_time_shares import DeviceTimeShares
from policies.runs.stages.final_round import FinalRound
from policies.runs.stages.granting import Granting
from policies.runs.stages.measuring import MeasureStage
from policies.runs.stages.pace import Pace
from policies.runs.stages.proposals import Proposals
from policies.runs.stages.task_finisher import TaskFinisher
from policies.runs.tasks import OracleBuild, TaskTrials
from policies.runs.times.time_budget import TimeBudget
from policies.runs.times.timers import Timers
from policies.runs.times.usage import Usage
from policies.search.bandits import TaskBandit

# Shortest interval at which the devices' use of time is counted: a large fleet has many events in this time.
_COUNT_SECS = 0.01


class RunState:
    """See the module's docstring. ``bandit``: chooses the task that gets the next trials."""

    def __init__(self, plan: RunPlan, bandit: TaskBandit) -> None:
        self._plan = plan
        self.tasks = {each.task.id: TaskTrials(each, plan.limits.task_trials) for each in plan.tasks}
        self.fleet = Fleet(plan.devices, plan.run_id, plan.before.device_changes)
        self._timers = Timers()
        builders = set(range(plan.builders)) - plan.left_builders
        self._builds = BuildStage(builders, plan.flow, self._timers, self._build_limit_secs)
        classes = dict.fromkeys(task.device_class for task in self.tasks.values())
        pace = Pace(plan.flow, classes)
        self._measuring = MeasureStage(plan, self.fleet, self.tasks, pace, self._timers, classes)
        is_lost = self._measuring.patience.is_lost
        self._granting = Granting(plan, self.tasks, bandit, self.fleet, pace, self._timers, is_lost)
        self._usage = Usage(classes)
        self._seen_secs = plan.before.secs  # until when the usage is counted
        self._members = Membership(plan, self.fleet, self._measuring, self._granting, pace, self._usage)
        self._device_time = DeviceTimeShares(self._builds, self._measuring.leases, self._granting)
        self._look_at: list[str] = []  # devices with a change
        kills = KillCounts(plan.flow.max_skips_in_row)
        self._finisher = TaskFinisher(self.tasks, self._builds, self._measuring.queue)
        self._proposals = Proposals(
            plan.flow.max_lost_proposals, self.tasks, self._granting, self._builds, self._finisher
        )
        self._records = RecordIntake(plan.run_id, self.tasks, self._measuring.queue, self._finisher)
        final_round = FinalRound(plan, self.fleet, self._builds, self._measuring, self._timers)
        self._build_results = BuildResults(
            self.tasks, self._builds, self._measuring.queue, pace, self._finisher, kills, final_round
        )
        self._batch_results = BatchResults(self.tasks, self._measuring, self._finisher, kills, self._usage, final_round)
        self._run_end = RunEnd(
            plan.limits,
            self.tasks,
            self.fleet,
            self._builds,
            self._measuring,
            self._granting,
            self._members,
            self._records,
            final_round,
            TimeBudget(plan.limits.time_budget_secs, self._timers),
        )
        self._restarts = Counter(plan.before.restarts)  # of processes, by role
        self._notices = Notices(plan.before.notices)
        self._begin_budget(plan.before.budget_from_secs)

    @property
    def phase(self) -> Phase:
        """Phase of the run; see :class:`policies.runs.run_end.RunEnd`."""
        return self._run_end.phase

    @property
    def wake_secs(self) -> float | None:
        """Second of the run at which a ``Tick`` is due if nothing else happens before."""
        return self._timers.next_secs

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in ``event``, and return the commands that follow, in their order."""
        return self.handle_all((event,), now)

    def handle_all(self, events: Iterable[Event], now: float) -> list[Command]:
        """Take in ``events`` of one moment, and return the commands that follow from all of them, in their order."""
        if self.phase is Phase.FINISHED:
            return []
        self._count_usage(now)
        for name in self._timers.due(now):
            if name in self._measuring.leases.slots:
                self._look_at.append(name)
            else:
                self._builds.timer_due(name)
        commands = [command for event in events for command in self._dispatch(event, now)]
        self._records.expect(commands)
        commands += self._advance(now)
        commands += self.fleet.drain()
        for command in commands:
            if isinstance(command, Log) and command.level != "info":
                self._notices.add(command.text, now)
        if any(isinstance(command, Abort) for command in commands):
            self._run_end.abort()
        return commands

    def progress(self, now: float) -> Progress:
        """Return a snapshot for views and metrics."""
        limits, tasks = self._plan.limits, self.tasks.values()
        task_limits = [task.limit for task in tasks]
        return Progress(
            phase=self.phase.word,
            elapsed_secs=now,
            time_budget_secs=self._run_end.budget_ends_secs(now),
            trial_limit=limits.trials if None in task_limits else sum(each or 0 for each in task_limits),
            trials=sum(task.trials for task in tasks),
            new_trials=self._records.new_trials,
            outcomes={outcome.value: count for outcome, count in self._records.outcomes.items()},
            records_per_sec=self._records.records_per_sec(now),
            queues={
                "build": self._builds.waiting,
                "building": self._builds.building,
                "measure": self._measuring.queue.waiting,
            },
            devices=self.fleet.words,
            device_changes=self.fleet.changes,
            vitals=self._measuring.leases.vitals,
            notices=self._notices.last,
            behind=self._device_time.behind,
            device_time=self._usage.lately,
            device_time_whole=self._usage.whole,
            restarts=dict(self._restarts),
            not_tried=self._run_end.not_tried,
            call_secs=self._measuring.leases.call_secs,
            tasks=tuple(task.progress(self._shown_speed(task)) for task in tasks if not task.is_left_out),
        )

    def _shown_speed(self, task: TaskTrials) -> float | None:
        """Return the speed at which people see the seconds of a task; None while it is not known. If the tuning is over
        and nothing was measured, it is 1, the speed of the stored seconds."""
        speed = self._measuring.leases.shown_speed(task.device_class)
        return 1.0 if speed is None and self.phase > Phase.TUNING else speed

    # What happens ----------------------------------------------------------------------------------------------------

    def _dispatch(self, event: Event, now: float) -> list[Command]:
        match event:
            case RecordsCommitted(records):
                return self._records.take(records, now)
            case SketchesReady(task_id, rules, confirmation_trials, floor_secs):
                task = self.tasks[task_id]
                task.describe(rules, confirmation_trials, floor_secs)
                self._begin_budget(now)
                return self._finisher.finish(task, task.confirmed_reason())
            case TaskSkipped(task_id):
                self.tasks[task_id].skip()
                self._begin_budget(now)
            case Proposed():
                return self._proposals.proposed(event, now, self.phase is Phase.TUNING)
            case ProposalLost():
                return self._proposals.lost(event, now)
            case Built():
                return self._build_results.take(event, self.phase, now)
            case BuilderLost():
                return self._build_results.builder_lost(event, self.phase, now)
            case DeviceProbed() | DeviceProbeFailed() | DeviceUnreachable():
                self._look_at.append(event.device_id)
                return self._measuring.readiness.checked(event, now)
            case DeviceAnswered():
                self._look_at.append(event.device_id)
                return self._members.use_device(event)
            case ClassAwaited():
                self._members.await_class(event)
            case ClassAdded():
                return self._class_added(event)
            case BuildersAdded(builders):
                self._builds.add_builders(builders)
            case BuildersLeft(builders):
                for builder in builders:
                    self._builds.remove_builder(builder)
            case DeviceAdded():
                self._members.expect_device(event, now)
            case DeviceLeft():
                return self._members.remove_device(event, now)
            case BatchMeasured() | BatchLost() | ShootOutMeasured() | BatchPostponed():
                return self._batch_ended(event, now)
            case DeviceInUse(device_id, behind):
                self._device_time.waits(device_id, behind, now)
            case AdminRequested(device_id, admin, reason):
                if device_id in self.fleet:
                    self.fleet.happened(device_id, health.AdminChanged(admin, reason), now)
                if device_id in self._measuring.leases.slots:
                    self._look_at.append(device_id)
            case DevicesRestored(states, orders, began_unix_secs, shown_speeds, calls):
                self._measuring.leases.restore(shown_speeds, calls)
                self.fleet.restore(states, orders, began_unix_secs, now)
                self._run_end.devices_restored()
            case RecordsCaughtUp():
                self._run_end.caught_up()
            case DeviceEventsStored(commands):
                self.fleet.events_stored(commands)
            case NoticePosted(text, well):
                return [Log("notice" if well else "warning", text)]
            case ProcessRestarted(_, role, times):
                self._restarts[role.value] += times
                return [Log("warning", event.text)]
            case StopRequested():
                self._run_end.request_stop()
            case Tick():
                pass  # the timers are looked at with every event
        return []

    def _class_added(self, event: ClassAdded) -> list[Command]:
        added = self._members.add_class(event)
        self.tasks |= {task.task.id: task for task in added}
        return [command for task in added for command in self._records.add_task(task)]

    def _batch_ended(self, event: BatchResult, now: float) -> list[Command]:
        if not self._batch_results.is_valid(event):
            return self._batch_results.ignore(event)
        self._look_at.append(event.device_id)
        return self._batch_results.take(event, self.phase, now)

    # What follows ----------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Command]:
        """Start whatever can start now, and go from phase to phase."""
        commands: list[Command] = []
        if self._run_end.begin_tuning_if_ready():
            self._look_at += self._measuring.leases.slots
        if self.phase is Phase.TUNING:
            commands += self._give_up_deserted(now)
            self._run_end.end_tuning_if_due(now)
        if self.phase is Phase.TUNING:
            commands += self._tune(now)
        self._look_at.clear()
        self.fleet.take_changed()
        return commands + self._run_end.finish_if_done(now)

    def _give_up_deserted(self, now: float) -> list[Command]:
        deserted, commands = self._members.deserted(now)
        for task in deserted:
            commands += self._finisher.drop(task, f"no device of class {task.device_class} is left in the fleet")
        return commands

    def _tune(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for device_id in dict.fromkeys([*self._look_at, *self.fleet.take_changed()]):
            if device_id not in self._measuring.leases.slots:
                continue
            commands += self._measuring.readiness.look_at(device_id, now)
        commands += self._granting.start(now, self._builds)
        commands += self._builds.start(now)
        commands += self._measuring.start(now, self._builds.nothing_soon(now))
        return commands

    def _build_limit_secs(self, job: Buildable) -> float:
        if self._plan.build_timeout_secs is not None:
            return self._plan.build_timeout_secs
        limit_secs = self.tasks[job.task.id].build_limit.secs
        # A task cannot be tuned without its oracle, and a finalist has been built before.
        return max(limit_secs, UNKNOWN_SECS) if isinstance(job, OracleBuild) or job.is_finalist else limit_secs

    def _count_usage(self, now: float) -> None:
        """While the run is tuning, count the time since the last call by what the devices do now."""
        if self.phase is Phase.TUNING and now - self._seen_secs < _COUNT_SECS:
            return
        secs, self._seen_secs = now - self._seen_secs, now
        if self.phase is Phase.TUNING:
            self._usage.count(secs, {each: self._device_time.of(each) for each in self._granting.by_class})

    def _begin_budget(self, now: float) -> None:
        """Begin the time budget once every task is described. Tuning before that does not count, so that a task that is
        described late gets as much of the budget as all others. Tasks of a class that joins during the run get what is
        left."""
        if not any(task.is_awaited and not task.planned.late for task in self.tasks.values()):
            self._run_end.begin_budget(now)
