"""A run as a pure state machine: :meth:`RunState.handle` takes what happened and says what is to be done.

The state is what the records say, and what is under way: proposals, builds, batches on devices, shoot-outs. Whoever
drives it (:class:`actors.scheduling.scheduler.Scheduler`, or a test in virtual time) carries out the commands, each in
its own time, and hands in the events with which they end: one for each. A lost answer is an event too; what a device
says after it was given up, under an old lease, is ignored. ``now`` is in seconds since the run began and never goes
back; it is the only clock."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable

from fleet_tune.base.domain import Measurement, Outcome
from fleet_tune.base.errors import BuildersLostError
from fleet_tune.base.results import DeviceTime, NotTried, Progress
from policies.measuring import health
from policies.measuring.build_limit import UNKNOWN_SECS
from policies.runs.commands import (
    Abort,
    CatchUpRecords,
    Command,
    DropArtifacts,
    Finish,
    Log,
    RecordFailure,
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
from policies.runs.kill_counts import KillCounts, Step
from policies.runs.membership import Membership
from policies.runs.notices import Notices
from policies.runs.plan import RunPlan
from policies.runs.record_intake import RecordIntake
from policies.runs.shortfall import STOPPED, TIME_OVER, trials_not_made
from policies.runs.stages.building import Buildable, BuildStage
from policies.runs.stages.final_round import FinalRound
from policies.runs.stages.granting import Granting
from policies.runs.stages.measuring import MeasureStage
from policies.runs.stages.occupation import Occupation
from policies.runs.stages.pace import Pace
from policies.runs.stages.proposals import Proposals
from policies.runs.stages.task_ends import TaskEnds
from policies.runs.tasks import OracleBuild, OracleState, TaskTrials
from policies.runs.times.time_budget import TimeBudget
from policies.runs.times.timers import Timers
from policies.runs.times.usage import Usage
from policies.runs.unchecked_tasks import UncheckedTasks
from policies.search.bandits import TaskBandit

# What devices do is counted no more often: a large fleet has many events in this time.
_COUNT_SECS = 0.01
_MEND_AND_RESUME = "mend what it names and run the same command again: it resumes"


class Phase(enum.IntEnum):
    """Phases of a run, in order. A run may skip some."""

    STARTING = enum.auto()  # until what earlier runs left is read
    TUNING = enum.auto()  # until a limit is reached, every task is finished, or somebody stops it
    LAST_BATCHES = enum.auto()  # what is being measured is stored, what is only built is dropped
    CATCHING_UP = enum.auto()  # until every record of them has come
    SHOOT_OUTS = enum.auto()  # see policies.runs.stages.final_round
    CLOSING = enum.auto()  # until every record and every change of a device is durable and has come
    FINISHED = enum.auto()

    @property
    def word(self) -> str:
        """Name for people; the phases at the end of a run have one name."""
        return self.name.lower() if self in (Phase.STARTING, Phase.TUNING, Phase.FINISHED) else "finishing"


class RunState:
    """See the module's docstring. ``bandit``: which task gets the next trials."""

    def __init__(self, plan: RunPlan, bandit: TaskBandit) -> None:
        self._plan = plan
        self.phase = Phase.STARTING
        self.tasks = {each.task.id: TaskTrials(each, plan.limits.task_trials) for each in plan.tasks}
        self.fleet = Fleet(plan.devices, plan.run_id, plan.before.device_changes)
        self._timers = Timers()
        builders = set(range(plan.builders)) - plan.left_builders
        self._builds = BuildStage(builders, plan.flow, self._timers, self._build_limit_secs)
        classes = dict.fromkeys(task.device_class for task in self.tasks.values())
        self._pace = Pace(plan.flow, classes)
        self._devices = MeasureStage(plan, self.fleet, self.tasks, self._pace, self._timers, classes)
        self._granting = Granting(plan, self.tasks, bandit, self.fleet, self._pace, self._timers)
        self._usage = Usage(classes)
        self._seen_secs = plan.before.secs  # until when the usage is counted
        self._members = Membership(plan, self.fleet, self._devices, self._granting, self._pace, self._usage)
        self._final_round = FinalRound(plan, self.fleet, self._builds, self._devices, self._timers)
        self._occupation = Occupation(self._builds, self._devices.leases, self._granting)
        self._budget = TimeBudget(plan.limits.time_budget_secs, self._timers)
        self._look_at: list[str] = []  # devices of which something changed
        self._kills = KillCounts(plan.flow.left_out)
        self._ends = TaskEnds(self.tasks, self._builds, self._devices.queue)
        self._proposals = Proposals(plan.flow.proposals, self.tasks, self._granting, self._builds, self._ends)
        self._records = RecordIntake(plan.run_id, self.tasks, self._devices.queue, self._ends)
        self._restored = False
        self._caught_up = False
        self._stopped = False
        self._tuning_ended_by = ""  # empty while the run tunes, and where nothing was left to tune
        self._unchecked = UncheckedTasks(self.tasks)
        self._restarts = Counter(plan.before.restarts)  # of processes, by role
        self._notices = Notices(plan.before.notices)
        self._begin_budget(plan.before.budget_from_secs)

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
            if name in self._devices.leases.lanes:
                self._look_at.append(name)
            else:
                self._builds.timer_due(name)
        commands = [command for event in events for command in self._happened(event, now)]
        self._records.expect(commands)
        commands += self._advance(now)
        commands += self.fleet.drain()
        for command in commands:
            if isinstance(command, Log) and command.level != "info":
                self._notices.add(command.text, now)
        if any(isinstance(command, Abort) for command in commands):
            self.phase = Phase.FINISHED
        return commands

    def progress(self, now: float) -> Progress:
        """A snapshot for views and metrics."""
        limits, tasks = self._plan.limits, self.tasks.values()
        task_limits = [task.limit for task in tasks]
        return Progress(
            phase=self.phase.word,
            elapsed_secs=now,
            time_budget_secs=self._budget.ends_secs(now),
            trial_limit=limits.trials if None in task_limits else sum(each or 0 for each in task_limits),
            trials=sum(task.trials for task in tasks),
            new_trials=self._records.new_trials,
            outcomes={outcome.value: count for outcome, count in self._records.outcomes.items()},
            records_per_sec=self._records.records_per_sec(now),
            queues={
                "build": self._builds.waiting,
                "building": self._builds.building,
                "measure": self._devices.queue.waiting,
            },
            devices=self.fleet.words,
            device_changes=self.fleet.changes,
            vitals=self._devices.leases.vitals,
            notices=self._notices.last,
            behind=self._occupation.behind,
            device_time=self._usage.lately,
            device_time_whole=self._usage.whole,
            restarts=dict(self._restarts),
            not_tried=self._not_tried,
            tasks=tuple(
                task.progress(self._devices.leases.usual_speed(task.device_class))
                for task in tasks
                if not task.is_left_out
            ),
        )

    # What happens ----------------------------------------------------------------------------------------------------

    def _happened(self, event: Event, now: float) -> list[Command]:
        match event:
            case RecordsCommitted(records):
                return self._records.take(records, now)
            case SketchesReady(task_id, rules, enough):
                task = self.tasks[task_id]
                task.describe(rules, enough)
                self._begin_budget(now)
                return self._ends.finish(task, task.confirmed_reason())
            case TaskSkipped(task_id):
                self.tasks[task_id].skip()
                self._begin_budget(now)
            case Proposed():
                return self._proposals.proposed(event, now, self.phase is Phase.TUNING)
            case ProposalLost():
                return self._proposals.lost(event, now)
            case Built(builder, failure):
                ended = self._builds.ended(builder, now)
                if ended is None:
                    return []
                job, secs = ended
                self._kills.reset(Step.BUILT)
                self._pace.built(job.task.device_class.name, secs)
                return self._is_built(job) if failure is None else self._not_built(job, failure)
            case BuilderLost():
                return self._builder_lost(event, now)
            case DeviceProbed() | DeviceProbeFailed() | DeviceUnreachable():
                self._look_at.append(event.device_id)
                return self._devices.readiness.checked(event, now)
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
                self._occupation.waits(device_id, behind, now)
            case AdminRequested(device_id, admin, reason):
                if device_id in self.fleet:
                    self.fleet.happened(device_id, health.AdminChanged(admin, reason), now)
                if device_id in self._devices.leases.lanes:
                    self._look_at.append(device_id)
            case DevicesRestored(states, orders, began_unix_secs):
                self.fleet.restore(states, orders, began_unix_secs, now)
                self._restored = True
            case RecordsCaughtUp():
                self._caught_up = True
            case DeviceEventsStored(commands):
                self.fleet.events_stored(commands)
            case NoticePosted(text, well):
                return [Log("notice" if well else "warning", text)]
            case ProcessRestarted(_, role, times):
                self._restarts[role.value] += times
                return [Log("warning", event.text)]
            case StopRequested():
                self._stopped = True
            case Tick():
                pass  # the timers are looked at with every event
        return []

    def _class_added(self, event: ClassAdded) -> list[Command]:
        added = self._members.add_class(event)
        self.tasks |= {task.task.id: task for task in added}
        return [command for task in added for command in self._records.add_task(task)]

    def _is_built(self, job: Buildable) -> list[Command]:
        task = self.tasks[job.task.id]
        if isinstance(job, OracleBuild):
            if task.oracle is not OracleState.FAILED:  # nothing more of the task is wanted
                task.oracle_ready()
                self._devices.queue.oracle_ready(job.task.id)
            return []
        candidate_id = job.candidate.id
        if not job.is_finalist and task.oracle is OracleState.FAILED:
            task.candidates.end(candidate_id)
            return [DropArtifacts((candidate_id,))]
        task.candidates.built(candidate_id)
        if not job.is_finalist and self.phase is Phase.TUNING:
            self._devices.queue.add(job)
        return []

    def _not_built(self, job: Buildable, failure: Measurement) -> list[Command]:
        task = self.tasks[job.task.id]
        is_killed, is_tuning = failure.outcome is Outcome.KILLED, self.phase is Phase.TUNING
        commands = self._kills.add(Step.BUILT, failure, is_tuning) if is_killed else []
        if isinstance(job, OracleBuild):
            return commands + self._ends.without_oracle(task, failure.detail)
        if job.is_finalist:
            self._final_round.not_built(job)
            return commands
        if is_killed:
            return self._ends.give_up(job.candidate, failure) + commands
        return [RecordFailure(job.candidate, failure)]

    def _builder_lost(self, event: BuilderLost, now: float) -> list[Command]:
        """The builder's fault, not the candidate's, unless it happens to it again."""
        builder, detail = event.builder, event.detail
        if not self._builds.works(builder):
            return []
        commands: list[Command] = [Log("warning", f"builder {builder}: {detail}")]
        given_up = self._builds.lost(builder, detail, event.cause)
        if self._builds.hopeless:
            return [*commands, *self._without_builders(detail)]
        self._builds.rest(builder, now)
        return commands if given_up is None else [*commands, *self._not_built(*given_up)]

    def _without_builders(self, detail: str) -> list[Command]:
        """End the run, as nothing can be built any more; a shoot-out skips the finalists that are not built."""
        if self.phase is Phase.SHOOT_OUTS:
            self._final_round.close()
            return []
        return [Abort(BuildersLostError(f"no builder works: {detail}", _MEND_AND_RESUME))]

    def _batch_ended(
        self, event: BatchMeasured | BatchLost | ShootOutMeasured | BatchPostponed, now: float
    ) -> list[Command]:
        device_id = event.device_id
        if not self._devices.leases.holds(device_id, event.epoch):
            if device_id not in self._devices.leases.lanes:
                return []  # it has left
            return [Log("warning", f"device {device_id}: an answer under lease {event.epoch} came late")]
        self._look_at.append(device_id)
        match event:
            case BatchMeasured():
                for what, secs in event.waits.items():
                    if what is not DeviceTime.TURN:  # that was counted while it passed
                        self._usage.was(self._devices.leases.lanes[device_id].device_class, what, secs)
                if any(outcome.blames_candidate for outcome in event.outcomes.values()):
                    self._kills.reset(Step.MEASURED)
                told = self._unchecked.take(event)
                return [*told, *self._devices.measured(event, now), *self._given_up_on_devices()]
            case BatchLost():
                return self._devices.batch_lost(event, now) + self._given_up_on_devices()
            case BatchPostponed():
                self._devices.postponed(device_id, now)
                return []
            case ShootOutMeasured(_, _, ""):
                self._devices.leases.release(device_id, now)
                return []
            case ShootOutMeasured(_, _, detail):
                lost = self._devices.lost(device_id, (), None, detail, now)
                return [Log("warning", f"shoot-out on {device_id}: {detail}"), *lost]

    def _given_up_on_devices(self) -> list[Command]:
        commands: list[Command] = []
        for trial, failure in self._devices.drain_given_up():
            commands += self._ends.give_up(trial.candidate, failure)
            commands += self._kills.add(Step.MEASURED, failure, self.phase is Phase.TUNING)
        return commands

    # What follows ----------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Command]:
        """Start whatever can start now, and go from phase to phase."""
        commands: list[Command] = []
        if self.phase is Phase.STARTING and self._restored and self._caught_up:
            self.phase = Phase.TUNING
            self._records.begin_rate()
            self._look_at += self._devices.leases.lanes
        if self.phase is Phase.TUNING:
            commands += self._give_up_deserted(now)
        if self.phase is Phase.TUNING and (self._stopped or self._budget.tuning_is_over(now) or self._is_done):
            self._end_tuning(now)
        if self.phase is Phase.TUNING:
            commands += self._tune(now)
        self._look_at.clear()
        self.fleet.take_changed()
        if self.phase is Phase.LAST_BATCHES and not self._devices.leases.any_leased and not self._records.is_recording:
            self.phase = Phase.CATCHING_UP
            commands.append(self._catch_up())
        if self.phase is Phase.CATCHING_UP and self._caught_up:
            self.phase = Phase.SHOOT_OUTS
            self._final_round.open(self.tasks.values())
        if self.phase is Phase.SHOOT_OUTS:
            if self._stopped or self._budget.is_over(now):
                self._final_round.close()
            commands += self._final_round.start(now)
            commands += self._builds.start(now)
            if self._final_round.done and not self._devices.leases.any_leased:
                self.phase = Phase.CLOSING
                commands.append(self._catch_up())
        if self.phase is Phase.CLOSING and self._caught_up and self.fleet.is_kept and not self._records.is_recording:
            self.phase = Phase.FINISHED
            commands.append(Finish())
        return commands

    @property
    def _is_done(self) -> bool:
        """True once nothing is left to tune, and no task will come."""
        return self._granting.done and not self._members.is_awaited

    def _give_up_deserted(self, now: float) -> list[Command]:
        deserted, commands = self._members.deserted(now)
        for task in deserted:
            commands += self._ends.drop(task, f"no device of class {task.device_class} is left in the fleet")
        return commands

    def _tune(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for device_id in dict.fromkeys([*self._look_at, *self.fleet.take_changed()]):
            if device_id not in self._devices.leases.lanes:
                continue
            commands += self._devices.readiness.look_at(device_id, now)
        commands += self._granting.start(now, self._builds)
        commands += self._builds.start(now)
        commands += self._devices.start(now, self._builds.nothing_soon(now))
        return commands

    def _build_limit_secs(self, job: Buildable) -> float:
        if self._plan.build_timeout_secs is not None:
            return self._plan.build_timeout_secs
        limit_secs = self.tasks[job.task.id].build_limit.secs
        # Without its oracle a task is nothing, and a finalist has been built before.
        return max(limit_secs, UNKNOWN_SECS) if isinstance(job, OracleBuild) or job.is_finalist else limit_secs

    @property
    def _not_tried(self) -> tuple[NotTried, ...]:
        if self.phase <= Phase.TUNING:
            return ()
        return trials_not_made(self._plan.limits, self.tasks.values(), self._tuning_ended_by)

    def _end_tuning(self, now: float) -> None:
        """End the tuning: measurements under way are stored, candidates that are only built are dropped."""
        self.phase = Phase.LAST_BATCHES
        if not self._is_done:
            self._tuning_ended_by = TIME_OVER if self._budget.tuning_is_over(now) else STOPPED
        for job in self._builds.drop(lambda _: True):
            if isinstance(job, OracleBuild):
                self.tasks[job.task.id].oracle_dropped()
        self._devices.end_tuning()
        for task in self.tasks.values():
            task.end_tuning()

    def _catch_up(self) -> CatchUpRecords:
        self._caught_up = False
        return CatchUpRecords()

    def _count_usage(self, now: float) -> None:
        """Count the time of the devices since the last call, while the run is tuning: as what they do now."""
        if self.phase is Phase.TUNING and now - self._seen_secs < _COUNT_SECS:
            return
        secs, self._seen_secs = now - self._seen_secs, now
        if self.phase is Phase.TUNING:
            self._usage.passed(secs, {each: self._occupation.of(each) for each in self._granting.by_class})

    def _begin_budget(self, now: float) -> None:
        """The time budget counts from when every task is described: what is tuned before comes on top, so that a task
        that is described late has as much of it as all others. Those of a class that joins while the run goes on have
        what is left."""
        if not any(task.is_awaited and not task.planned.late for task in self.tasks.values()):
            self._budget.begin(now, len(self.tasks))
