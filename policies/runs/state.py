"""A run as a pure state machine: :meth:`RunState.handle` takes what happened and says what is to be done.

The state is what the records say, and what is under way: proposals, builds, batches on devices, shoot-outs. Whoever
drives it (:class:`actors.scheduling.scheduler.Scheduler`, or a test in virtual time) carries out the commands, each in
its own time, and hands in the events with which they end: one for each. A lost answer is an event too; what a device
says after it was given up, under an old lease, is ignored. ``now`` is in seconds since the run began and never goes
back; it is the only clock."""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterable, Sequence

from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record
from fleet_tune.base.errors import BuildersLostError, DevicesLostError
from fleet_tune.base.results import DeviceTime, Progress
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
    RestartSearcher,
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
from policies.runs.membership import Membership
from policies.runs.notices import Notices
from policies.runs.plan import RunPlan
from policies.runs.stages.building import Buildable, BuildStage
from policies.runs.stages.final_round import FinalRound
from policies.runs.stages.granting import Granting
from policies.runs.stages.measuring import MeasureStage
from policies.runs.stages.occupation import Occupation
from policies.runs.stages.pace import Pace
from policies.runs.tasks import OracleBuild, OracleState, TaskTrials, Trial
from policies.runs.times.time_budget import TimeBudget
from policies.runs.times.timers import Timers
from policies.runs.times.usage import Usage
from policies.search.bandits import CONVERGENCE_GAIN, CONVERGENCE_TRIALS, TaskBandit, is_finished

_RATE_WINDOW_SECS = 20.0
# What devices do is counted no more often: a large fleet has many events in this time.
_COUNT_SECS = 0.01
_MEND_AND_RESUME = "mend what it names and run the same command again: it resumes"
_BUILT, _MEASURED = "built", "measured"


class Phase(enum.IntEnum):
    """How far the run is. It goes from one to the next, and may leave some out."""

    STARTING = enum.auto()  # until what earlier runs left is read
    TUNING = enum.auto()  # until a limit is reached, every task is finished, or somebody stops it
    LAST_BATCHES = enum.auto()  # what is being measured is stored, what is only built is dropped
    CATCHING_UP = enum.auto()  # until every record of them has come
    SHOOT_OUTS = enum.auto()  # see policies.runs.stages.final_round
    CLOSING = enum.auto()  # until every record and every change of a device is durable and has come
    FINISHED = enum.auto()

    @property
    def word(self) -> str:
        """For people, who need not tell apart how a run ends."""
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
        self._members = Membership(plan, self.tasks, self.fleet, self._devices, self._granting, self._pace, self._usage)
        self._final_round = FinalRound(plan, self.fleet, self._builds, self._devices, self._timers)
        self._occupation = Occupation(self._builds, self._devices.leases, self._granting)
        self._budget = TimeBudget(plan.limits.time_budget_secs, self._timers)
        self._look_at: list[str] = []  # devices of which something changed
        self._resting: dict[str, int] = {}  # lost builders by the name of their timer
        self._recording: set[str] = set()  # candidates whose failure is being made durable
        # Candidates that were given up, because no process lived long enough, since one was built or measured.
        self._given_up: Counter[str] = Counter()
        self._restored = False
        self._caught_up = False
        self._stopped = False
        self._cursor = 0
        self._strangers: dict[str, list[Record]] = {}  # records of tasks that are none of the run, or not yet
        self._outcomes: Counter[Outcome] = Counter()
        self._new_trials = 0
        self._recent: deque[float] = deque()
        self._notices = Notices(plan.before.notices)
        self._begin_budget(plan.before.budget_from_secs)

    @property
    def wake_secs(self) -> float | None:
        """When a ``Tick`` is due if nothing else happens before."""
        return self._timers.next_secs

    def handle(self, event: Event, now: float) -> list[Command]:
        """What is to be done because of ``event``, in this order."""
        return self.handle_all((event,), now)

    def handle_all(self, events: Iterable[Event], now: float) -> list[Command]:
        """What is to be done because of ``events`` of one moment, in their order: what follows from all of them is
        looked at once."""
        if self.phase is Phase.FINISHED:
            return []
        self._count_usage(now)
        for name in self._timers.due(now):
            if name in self._devices.leases.lanes:
                self._look_at.append(name)
            elif name in self._resting:
                self._builds.rested(self._resting.pop(name))
        commands = [command for event in events for command in self._happened(event, now)]
        # What is recorded already comes no second time: nobody waits for it.
        self._recording |= {
            each.candidate.id
            for each in commands
            if isinstance(each, RecordFailure) and each.candidate.id not in self.tasks[each.candidate.task_id].recorded
        }
        commands += self._advance(now)
        commands += self.fleet.drain()
        for command in commands:
            if isinstance(command, Log) and command.level != "info":
                self._notices.tell(command.text, now)
        if any(isinstance(command, Abort) for command in commands):
            self.phase = Phase.FINISHED
        return commands

    def progress(self, now: float) -> Progress:
        """A snapshot for views and metrics."""
        while self._recent and self._recent[0] < now - _RATE_WINDOW_SECS:
            self._recent.popleft()
        limits, tasks = self._plan.limits, self.tasks.values()
        task_limits = [task.limit for task in tasks]
        return Progress(
            phase=self.phase.word,
            elapsed_secs=now,
            time_budget_secs=self._budget.ends_secs(now),
            trial_limit=limits.trials if None in task_limits else sum(each or 0 for each in task_limits),
            trials=sum(task.trials for task in tasks),
            new_trials=self._new_trials,
            outcomes={outcome.value: count for outcome, count in self._outcomes.items()},
            records_per_sec=len(self._recent) / min(_RATE_WINDOW_SECS, max(now, 1e-9)),
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
                return self._learn(records, now)
            case SketchesReady(task_id, rules, enough):
                task = self.tasks[task_id]
                task.rules, task.enough = rules, enough
                self._begin_budget(now)
                return self._finish(task, task.confirmed_reason())
            case TaskSkipped(task_id):
                self.tasks[task_id].is_left_out = True
                self._begin_budget(now)
            case Proposed():
                return self._proposed(event, now)
            case ProposalLost():
                return self._proposal_lost(event, now)
            case Built(builder, failure, trace):
                ended = self._builds.ended(builder, now)
                if ended is None:
                    return []
                job, secs = ended
                self._given_up[_BUILT] = 0
                self._pace.built(job.task.device_class.name, secs)
                return self._is_built(job) if failure is None else self._not_built(job, trace, failure)
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
                self.fleet.unkept -= commands
            case NoticePosted(text, well):
                return [Log("notice" if well else "warning", text)]
            case StopRequested():
                self._stopped = True
            case Tick():
                pass  # the timers are looked at with every event
        return []

    def _learn(self, records: Sequence[Record], now: float) -> list[Command]:
        commands: list[Command] = []
        for record in records:
            if record.seq <= self._cursor:
                continue  # read twice
            self._cursor = record.seq
            is_ours = record.run_id == self._plan.run_id
            if record.revision == 0:
                self._outcomes[record.measurement.outcome] += 1
                if is_ours:
                    self._new_trials += 1
                    self._recent.append(now)
            task = self.tasks.get(record.task_id)
            if task is None:
                self._strangers.setdefault(record.task_id, []).append(record)
                continue
            if is_ours:
                task.under_way.discard(record.candidate.id)
                task.given_up.discard(record.candidate.id)  # it was stored by a process that could not say so
                self._recording.discard(record.candidate.id)
                self._devices.queue.drop_recorded(record.candidate)
            commands += self._learn_of(task, record)
        return commands

    def _learn_of(self, task: TaskTrials, record: Record) -> list[Command]:
        if record.run_id == self._plan.run_id:
            task.recorded.add(record.candidate.id)
        unwanted = task.learn(record)
        forget = [DropArtifacts(unwanted)] if unwanted else []
        exhausted = self._finish(task, task.exhausted_reason())
        return [*forget, *exhausted, *self._finish(task, task.confirmed_reason())]

    def _class_added(self, event: ClassAdded) -> list[Command]:
        commands: list[Command] = []
        for task in self._members.add_class(event):
            for record in self._strangers.pop(task.task.id, ()):  # of earlier runs
                commands += self._learn_of(task, record)
        return commands

    def _proposed(self, event: Proposed, now: float) -> list[Command]:
        task = self.tasks[event.task_id]
        self._granting.answered(event.task_id, now)
        task.offer = event.number
        if self.phase is not Phase.TUNING:
            return []
        # Without a candidate, nothing new was found in a space that is nearly exhausted.
        task.exhausted = event.exhausted or not event.candidates
        if is_finished(task.best_history, False, event.predicted_gain):
            gains = f"{CONVERGENCE_TRIALS} trials gained less than {CONVERGENCE_GAIN:.0%}"
            expected = f"and so will the next one ({event.predicted_gain:.2%} expected)"
            return self._finish(task, f"converged: {gains}, {expected}")
        if task.oracle is not OracleState.FAILED:
            # A restarted searcher knows what was durable when it read it, not what is under way, or has come since.
            known = task.under_way, task.recorded, task.given_up
            fresh = [each for each in event.candidates if not any(each.id in ids for ids in known)]
            if fresh and task.oracle is OracleState.NOT_BUILT:
                task.oracle = OracleState.ON_ITS_WAY
                self._builds.add(OracleBuild(task.task))
                best = task.ranking.best
                if best is not None and best.id not in task.artifacts:  # of an earlier run: others are to meet it
                    self._builds.add(Trial(task.task, best, is_finalist=True))
            for candidate in fresh:
                task.under_way.add(candidate.id)
                self._builds.add(Trial(task.task, candidate))
        return self._finish(task, task.exhausted_reason())

    def _proposal_lost(self, event: ProposalLost, now: float) -> list[Command]:
        """The searcher starts again and reads the records: it is asked again, but not for ever over one task."""
        task_id, detail = event.task_id, event.detail
        task = self.tasks[task_id]
        losses = self._granting.lost(task_id, now)
        commands: list[Command] = [Log("warning", f"searcher of {task.task.workload.name}: {detail}")]
        if event.hangs:
            commands.append(RestartSearcher(task_id))
        if losses >= self._plan.flow.proposals:
            self._granting.give_up(task_id)
            reason = f"its searcher failed {losses} times in a row: {detail}"
            commands += [Log("error", f"{task.task.workload.name} on {task.device_class} is given up: {reason}")]
            commands += self._finish(task, reason)
        return commands

    def _is_built(self, job: Buildable) -> list[Command]:
        task = self.tasks[job.task.id]
        if isinstance(job, OracleBuild):
            if task.oracle is not OracleState.FAILED:  # nothing more of the task is wanted
                task.oracle = OracleState.READY
                self._devices.queue.oracle_ready(job.task.id)
            return []
        candidate_id = job.candidate.id
        if not job.is_finalist and task.oracle is OracleState.FAILED:
            task.under_way.discard(candidate_id)
            return [DropArtifacts((candidate_id,))]
        task.artifacts.add(candidate_id)
        if not job.is_finalist and self.phase is Phase.TUNING:
            self._devices.queue.add(job)
        return []

    def _not_built(self, job: Buildable, trace: str, failure: Measurement) -> list[Command]:
        task = self.tasks[job.task.id]
        commands = self._counted(_BUILT, failure) if failure.outcome is Outcome.KILLED else []
        if isinstance(job, OracleBuild):
            return commands + self._without_oracle(task, failure.detail)
        if job.is_finalist:
            self._final_round.not_built(job)
            return commands
        if failure.outcome is Outcome.KILLED:
            return self._give_up(job.candidate, failure) + commands
        return [RecordFailure(job.candidate, trace, failure)]

    def _give_up(self, candidate: Candidate, failure: Measurement) -> list[Command]:
        """The candidate is left out of the run, without a record: nobody knows anything of it."""
        task = self.tasks[candidate.task_id]
        task.under_way.discard(candidate.id)
        task.artifacts.discard(candidate.id)
        task.given_up.add(candidate.id)
        name = f"{task.task.workload.name} on {task.device_class}"
        told = Log("warning", f"a candidate of {name} is left out: {failure.detail}")
        return [
            told,
            DropArtifacts((candidate.id,)),
            *self._finish(task, task.exhausted_reason()),
            *self._finish(task, task.confirmed_reason()),
        ]

    def _counted(self, what: str, failure: Measurement) -> list[Command]:
        """Another one was given up because its processes were ended from outside. Where that is so of all, the run
        ends."""
        self._given_up[what] += 1
        if self.phase is not Phase.TUNING or self._given_up[what] < self._plan.flow.left_out:
            return []
        problem = f"{self._given_up[what]} candidates in a row could not be {what}: {failure.detail}"
        next_step = (
            "see who ends the processes (where memory is short, the kernel's log says so); the same command resumes"
        )
        lost = BuildersLostError if what == _BUILT else DevicesLostError
        return [Abort(lost(problem, next_step))]

    def _without_oracle(self, task: TaskTrials, detail: str) -> list[Command]:
        """Nothing that is measured of the task could be checked: it gets no more trials."""
        reason = f"the unscheduled program does not build: {detail}"
        return [Log("error", f"{task.task.workload.name}: {reason}"), *self._dropped(task, reason)]

    def _dropped(self, task: TaskTrials, reason: str) -> list[Command]:
        """The task gets no more trials, and what of it waits for something is given up."""
        task.oracle = OracleState.FAILED
        task_id = task.task.id
        dropped = self._devices.queue.drop_task(task_id)
        jobs = self._builds.drop(
            lambda job: job.task.id == task_id and not (isinstance(job, Trial) and job.is_finalist)
        )
        dropped += [job for job in jobs if isinstance(job, Trial)]
        # What a builder works on, or a failure that is being recorded, stays under way until it ends.
        task.under_way -= {trial.candidate.id for trial in dropped}
        unwanted, task.artifacts = tuple(sorted(task.artifacts)), set()
        return [DropArtifacts(unwanted), *self._finish(task, reason)]

    def _builder_lost(self, event: BuilderLost, now: float) -> list[Command]:
        """The builder's fault, not the candidate's, unless it happens to it again."""
        builder, detail = event.builder, event.detail
        if not self._builds.works(builder):
            return []
        commands: list[Command] = [Log("warning", f"builder {builder}: {detail}")]
        given_up = self._builds.lost(builder, detail, event.cause)
        if self._builds.hopeless:
            return [*commands, *self._without_builders(detail)]
        name = f"builder {builder}"  # with a space, which the name of no device has
        self._resting[name] = builder
        self._timers.at(now + self._builds.rest_secs(builder), name)
        return commands if given_up is None else [*commands, *self._not_built(given_up[0], "", given_up[1])]

    def _without_builders(self, detail: str) -> list[Command]:
        """Nothing can be built on any more; what a shoot-out lacks is left out."""
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
                    self._given_up[_MEASURED] = 0
                return self._devices.measured(event, now) + self._given_up_on_devices()
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
            commands += self._give_up(trial.candidate, failure)
            commands += self._counted(_MEASURED, failure)
        return commands

    def _finish(self, task: TaskTrials, reason: str) -> list[Command]:
        """The task gets no more trials, if there is a reason."""
        if not reason or task.finish_reason:
            return []
        task.finish_reason = reason
        return [Log("info", f"{task.task.workload.name} on {task.device_class}: {reason}")]

    # What follows ----------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Command]:
        """Start whatever can start now, and go from phase to phase."""
        commands: list[Command] = []
        if self.phase is Phase.STARTING and self._restored and self._caught_up:
            self.phase = Phase.TUNING
            self._recent.clear()  # of earlier runs
            self._look_at += self._devices.leases.lanes
        if self.phase is Phase.TUNING:
            commands += self._give_up_deserted(now)
        if self.phase is Phase.TUNING and (self._stopped or self._budget.tuning_is_over(now) or self._is_done):
            self._end_tuning()
        if self.phase is Phase.TUNING:
            commands += self._tune(now)
        self._look_at.clear()
        self.fleet.changed.clear()
        if self.phase is Phase.LAST_BATCHES and not self._devices.leases.any_leased and not self._recording:
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
        if self.phase is Phase.CLOSING and self._caught_up and self.fleet.is_kept and not self._recording:
            self.phase = Phase.FINISHED
            commands.append(Finish())
        return commands

    @property
    def _is_done(self) -> bool:
        """Whether nothing is left to tune, and nothing will come."""
        return self._granting.done and not self._members.is_awaited

    def _give_up_deserted(self, now: float) -> list[Command]:
        deserted, commands = self._members.deserted(now)
        for task in deserted:
            commands += self._dropped(task, f"no device of class {task.device_class} is left in the fleet")
        return commands

    def _tune(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for device_id in dict.fromkeys([*self._look_at, *self.fleet.changed]):
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

    def _end_tuning(self) -> None:
        """Nothing more is granted; what is measured now is stored, what is only built is dropped."""
        self.phase = Phase.LAST_BATCHES
        for job in self._builds.drop(lambda _: True):
            if isinstance(job, OracleBuild):
                self.tasks[job.task.id].oracle = OracleState.NOT_BUILT
        self._devices.end_tuning()
        for task in self.tasks.values():
            task.is_tuned = False

    def _catch_up(self) -> CatchUpRecords:
        self._caught_up = False
        return CatchUpRecords()

    def _count_usage(self, now: float) -> None:
        """What the devices did since it was counted last, while candidates are searched: as what they do now."""
        if self.phase is Phase.TUNING and now - self._seen_secs < _COUNT_SECS:
            return
        secs, self._seen_secs = now - self._seen_secs, now
        if self.phase is Phase.TUNING:
            self._usage.passed(secs, {each: self._occupation.of(each) for each in self._granting.by_class})

    def _begin_budget(self, now: float) -> None:
        """The time budget counts from when every task is described: what is tuned before comes on top, so that a task
        that is described late has as much of it as all others. Those of a class that joins while the run goes on have
        what is left."""
        if not any(task.is_awaited and not task.is_late for task in self.tasks.values()):
            self._budget.begin(now, len(self.tasks))
