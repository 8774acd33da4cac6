"""A world for :class:`policies.runs.state.RunState` in virtual time: it carries out the commands, and things go wrong.

No Ray, no event loop, no waiting: events lie in a heap by their time, and hours of a fleet's life pass in an instant.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_tune.device_state import Admin, DeviceEvent, DeviceState, Lease
from fleet_tune.domain import (
    Candidate,
    Comparison,
    Incumbent,
    Limits,
    Measurement,
    Outcome,
    Record,
    StopRule,
    Task,
)
from fleet_tune.errors import FleetTuneError
from policies.measuring.run_limit import run_limit
from policies.runs import commands as to_do
from policies.runs import events as ev
from policies.runs.measuring import Work
from policies.runs.plan import Before, Flow, PlannedTask, RunPlan
from policies.runs.state import Phase, RunState
from policies.runs.tasks import Oracle
from policies.search.bandits import TaskBandit
from tests.helpers.world_devices import HANG_SECS, PATIENCE_SECS, Device, Spans, candidate_of, overlaps, task_of, within


@dataclass
class World:
    """``supply``: candidates that each task has. ``build_secs``, ``propose_secs``: how long these take.
    ``build_fails``: numbers of candidates that do not build, ``slow_builds``: seconds by the numbers of those that take
    others. ``oracle_fails``: names of workloads whose oracle does
    not build; ``oracle_secs``: what it takes longer than a candidate. ``searcher_restarts``: share of proposals before
    which the searcher's process begins anew, with what is durable by then. ``recorder_secs``: until something is
    durable, about. ``builders_lost``, ``proposals_lost``: share of calls without an answer; ``builds_killed``: of those
    builds whose process is ended from outside, ``builders_absent``: of those that come to a builder that is not there
    at that moment. ``starts_fail``: when builders do not start, but the first
    ``builders_that_start``. ``searcher_dies``: names of workloads over which the searcher always dies, with all that it
    was asked for. ``floor_secs``: of every task; ``candidate_secs``: of candidates on the devices for which the fleet
    file says it. ``oracle_run_secs``: what the plan says of every oracle's
    runs. ``appear``: when devices answer for the first time of whose class nothing is known before. ``script``: events
    of other people's making by their time. ``stored``: what earlier runs left. ``described_at``: when tasks are
    described, by their id; the others are so from the start. ``left_out``: ids of those that turn out to have no
    sketch. ``settled``: why tasks need no trial, by their id; ``enough``: how many trials are enough for those that are
    described later. ``scheduler_lost_at``: when the process that drives the run is lost, and another takes its
    place. ``joins``: when the first device of a class answers of which nobody did at the start: the network is prepared
    for it for ``prepare_secs``, and where it is one of the ``unprepared`` ones in vain. ``added``: when devices are
    added to the fleet file that it has not had at the start; they answer a second later, or when they ``appear``.
    ``leave``: when devices are removed from it. ``builders_left_at``: when the machine of all builders leaves; that of
    as many others comes a second later."""

    devices: Mapping[str, Device]
    tasks: Sequence[Task] = ()
    builders: int = 4
    supply: int = 60
    limits: Limits = field(default_factory=Limits)
    flow: Flow = field(default_factory=Flow)
    rule: StopRule = field(default_factory=StopRule)
    build_secs: float = 0.05
    propose_secs: float = 0.01
    build_fails: frozenset[int] = frozenset()
    slow_builds: Mapping[int, float] = field(default_factory=dict)
    oracle_fails: frozenset[str] = frozenset()
    oracle_secs: float = 0.0
    searcher_restarts: float = 0.0
    recorder_secs: float = 0.02
    builders_lost: float = 0.0
    builds_killed: float = 0.0
    builders_absent: float = 0.0
    proposals_lost: float = 0.0
    starts_fail: Spans = ()
    builders_that_start: int = 0
    searcher_dies: frozenset[str] = frozenset()
    oracle_run_secs: float = 0.0
    floor_secs: float = 1e-9
    candidate_secs: Mapping[str, float] = field(default_factory=dict)
    appear: Mapping[str, float] = field(default_factory=dict)
    patience_secs: float = 120.0
    check_every_secs: float = 120.0
    build_timeout_secs: float | None = None
    script: Mapping[float, ev.Event] = field(default_factory=dict)
    stored: tuple[Record, ...] = ()
    described_at: Mapping[str, float] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    settled: Mapping[str, str] = field(default_factory=dict)
    enough: Mapping[str, int] = field(default_factory=dict)
    scheduler_lost_at: tuple[float, ...] = ()
    device_states: Mapping[str, DeviceState] = field(default_factory=dict)
    joins: Mapping[str, float] = field(default_factory=dict)
    prepare_secs: float = 2.0
    unprepared: frozenset[str] = frozenset()
    added: Mapping[str, float] = field(default_factory=dict)
    leave: Mapping[str, float] = field(default_factory=dict)
    builders_left_at: float = math.inf
    run_id: str = "run"
    seed: int = 0

    def __post_init__(self) -> None:
        classes = dict.fromkeys(device.device_class for device in self.devices.values())
        self.tasks = tuple(self.tasks) or tuple(task_of(each) for each in classes)
        self.members = Counter(device.device_class for device in self.devices.values())
        self._joined: dict[str, bool] = dict.fromkeys(self.joins, False)  # classes: whether they are in the run
        self._there = {name: "" if name in self.appear else each.device_class for name, each in self.devices.items()}
        for name in self.added:
            del self._there[name]
        self._answered = {name for name in self.devices if name not in (*self.appear, *self.added)}
        self.now = 0.0
        self._left_builders: set[int] = set()
        plan = self._plan()
        self.flow = plan.flow
        self.state = RunState(plan, TaskBandit(self.seed))
        self.records: list[Record] = list(self.stored)
        self.events: list[DeviceEvent] = []  # durable
        self.epochs = {name: state.lease.epoch for name, state in self.device_states.items()}
        self.held: dict[str, int] = {}
        self.measured_under: dict[str, list[int]] = {name: [] for name in self.devices}
        self.met: list[tuple[str, str]] = []  # device and task of each shoot-out that was held
        self.restarts: Counter[str] = Counter()
        self.probes: Counter[str] = Counter()
        self.lines: list[str] = []
        self.error: FleetTuneError | None = None
        self.finished = False
        self.most: Counter[str] = Counter()  # that ever might be under way, by class
        self.busy_secs: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()  # how often each candidate ran on a device
        self.built: set[str] = set()
        self.built_ever: set[str] = set()
        self._heap: list[tuple[float, int, ev.Event | Callable[[], None]]] = []
        self._order = itertools.count()
        self._rng = random.Random(self.seed)
        self._told = 0  # records that the run has been told of
        self._offers: Counter[str] = Counter()
        self._asked: dict[str, ev.Proposed | ev.ProposalLost] = {}  # what the searcher is at, by task
        measured = {record.candidate.id for record in self.stored}
        self._planned = {
            task.id: deque(
                each for each in (candidate_of(task, at) for at in range(self.supply)) if each.id not in measured
            )
            for task in self.tasks
        }
        self._last_offer: dict[str, tuple[Candidate, ...]] = {}
        self._mishaps: dict[str, list[tuple[float, str]]] = {
            name: sorted([(at, "hang") for at in device.hangs_at] + [(at, "die") for at in device.dies_at])
            for name, device in self.devices.items()
        }
        self._uids = {record.uid for record in self.records}
        self._failures: dict[str, Record] = {}  # of the run's own making, on their way to the recorder
        self.losses = 0

    def _plan(self, before: Before | None = None) -> RunPlan:
        """``before``: of the state whose place another takes."""
        now = -1.0 if before is None else self.now
        return RunPlan(
            run_id=self.run_id,
            tasks=tuple(
                self._planned_task(task, now) for task in self.tasks if self._joined.get(task.device_class.name, True)
            ),
            awaited_classes=frozenset(each for each in self.joins if self._is_awaited(each)),
            devices={
                name: device_class if self._joined.get(device_class, True) else ""
                for name, device_class in self._there.items()
            },
            builders=self.builders + len(self._left_builders),
            left_builders=frozenset(self._left_builders),
            limits=self.limits,
            rule=self.rule,
            flow=self.flow,
            device_patience_secs=self.patience_secs,
            check_every_secs=self.check_every_secs,
            candidate_secs={name: secs for name, secs in self.candidate_secs.items() if name in self._there},
            build_timeout_secs=self.build_timeout_secs,
            before=before or Before(),
        )

    def _planned_task(self, task: Task, now: float) -> PlannedTask:
        return PlannedTask(
            task,
            self._rules(task.id, now),
            self.floor_secs,
            self.oracle_run_secs,
            settled=self.settled.get(task.id, ""),
            enough=self._enough(task.id, now),
            late=task.device_class.name in self.joins,
        )

    def _is_awaited(self, device_class: str) -> bool:
        """Whether the network is just being prepared for a class."""
        begun = self.joins[device_class]
        return begun <= self.now < begun + self.prepare_secs

    def _class_joins(self, device_class: str) -> None:
        """The network is prepared for the class, or turns out not to be what can be prepared."""
        tasks = [task for task in self.tasks if task.device_class.name == device_class]
        if device_class in self.unprepared or self.state.phase > Phase.TUNING:  # or it comes too late
            tasks = []
        self._joined[device_class] = bool(tasks)
        self._do(
            self.state.handle(
                ev.ClassAdded(device_class, tuple(self._planned_task(each, self.now) for each in tasks)), self.now
            )
        )
        for name, device in self.devices.items():
            if device.device_class == device_class and name in self._answered:
                self._answers(name)

    def _answers(self, name: str) -> None:
        """A device that was waited for answers; it is used when its class is in the run."""
        device_class = self.devices[name].device_class
        self._answered.add(name)
        if self._joined.get(device_class, True) and not self._is_left(name):
            self._there[name] = device_class
            self._do(self.state.handle(ev.Appeared(name, device_class), self.now))

    def _builders_leave(self) -> None:
        """Those with the first numbers; others come a second later."""
        self._left_builders = set(range(self.builders))
        self._do(self.state.handle(ev.BuildersLeft(tuple(self._left_builders)), self.now))
        come = range(self.builders, 2 * self.builders)
        self._later(self.now + 1.0, lambda: self._do(self.state.handle(ev.BuildersAdded(tuple(come)), self.now)))

    def _is_left(self, name: str) -> bool:
        return self.leave.get(name, math.inf) <= self.now

    def _is_added(self, name: str) -> None:
        self._there[name] = ""
        state = next((each.state for each in reversed(self.events) if each.device_id == name), DeviceState())
        self._do(self.state.handle(ev.DeviceAdded(name, state, candidate_secs=self.candidate_secs.get(name)), self.now))

    def _leaves(self, name: str) -> None:
        self._there.pop(name, None)
        self._do(self.state.handle(ev.DeviceLeft(name, "it is no longer in the fleet file"), self.now))

    def _rules(self, task_id: str, now: float) -> tuple[str, ...] | None:
        """What is known of a task's sketches by now."""
        if self.described_at.get(task_id, -1.0) > now:
            return None
        return () if task_id in self.left_out & self.described_at.keys() else ("rule",)

    def _enough(self, task_id: str, now: float) -> int:
        """What is known by now of how many trials are enough for a task."""
        return self.enough.get(task_id, 0) if self.described_at.get(task_id, math.inf) <= now else 0

    # Play -------------------------------------------------------------------------------------------------------------

    def play(self, most_events: int = 200_000) -> World:
        """Until the run is over. AssertionError where nothing could ever happen again, or it does not end."""
        for at, event in self.script.items():
            self._later(at, event)
        for at in self.scheduler_lost_at:
            self._later(at, self._scheduler_is_lost)
        for name, at in self.added.items():
            self._later(at, functools.partial(self._is_added, name))
        for name, at in (dict.fromkeys(self.added, 0.0) | self.appear).items():
            self._later(max(at, self.added.get(name, 0.0) + 1.0), functools.partial(self._answers, name))
        for name, at in self.leave.items():
            self._later(at, functools.partial(self._leaves, name))
        if self.builders_left_at < math.inf:
            self._later(self.builders_left_at, self._builders_leave)
        for device_class, at in self.joins.items():
            self._later(at, ev.ClassAwaited(device_class))
            self._later(at + self.prepare_secs, functools.partial(self._class_joins, device_class))
        for task_id, at in self.described_at.items():
            without = task_id in self.left_out
            self._later(
                at,
                ev.Undescribable(task_id) if without else ev.Described(task_id, ("rule",), self.enough.get(task_id, 0)),
            )
        self._do(self.state.handle(ev.Restored(self.device_states, {}), 0.0))
        self._tell()
        self._do(self.state.handle(ev.CaughtUp(), 0.0))
        for _ in range(most_events):
            if self.finished or self.error:
                return self
            wake = self.state.wake_secs
            if self._heap and (wake is None or self._heap[0][0] <= wake):
                at, _, happening = heapq.heappop(self._heap)
            else:
                assert wake is not None, f"nothing is left that could ever happen, in phase {self.state.phase.name}"
                at, happening = wake, ev.Tick()
            self.now = max(self.now, at)
            if callable(happening):
                happening()
            else:
                self._do(self.state.handle(happening, self.now))
            self.check()
        raise AssertionError(f"no end after {most_events} events, in phase {self.state.phase.name} at {self.now} s")

    def check(self) -> None:
        """What must hold at any time: the flow is bounded, and nobody is idle while there is work."""
        state, flow = self.state, self.flow
        for device_class, members in self.members.items():
            if device_class not in state._granting.by_class:
                continue
            tasks = [task for task in state.tasks.values() if task.device_class == device_class]
            in_flight = sum(task.in_flight for task in tasks)
            # It was granted when the class had more devices, or faster ones.
            self.most[device_class] = max(self.most[device_class], state._granting.may_be_under_way(device_class))
            assert in_flight <= self.most[device_class], f"{in_flight} are under way and not {self.most[device_class]}"
            assert state._devices._leased[device_class] <= members
        # Every class may be granted some at the same moment; oracles, and what lost builders leave, come on top.
        granted = flow.waiting_per_builder * self.builders + flow.grant * len(self.members)
        assert state._builds.waiting <= granted + len(self.tasks) + self.builders
        assert state._builds.building <= self.builders
        if state.phase is Phase.TUNING:
            for lane in state._devices.lanes.values():
                if lane.work is Work.NOTHING and lane.device_id not in state._devices._idle[lane.device_class]:
                    device = state.fleet[lane.device_id]
                    waits = lane.rests_until >= self.now or device.until_unix_secs + 1e-3 >= self.now
                    assert waits or device.admin is not Admin.ACTIVE, f"nobody looks at {lane}: {device}"
            assert not (state._builds.waiting and state._builds._free), "a builder is idle while something waits"
            for device_class, idle in state._devices._idle.items():
                if not idle:
                    continue
                ready = (
                    trial
                    for trial in state._devices._built[device_class]
                    if not (trial.losses or trial.alone) and state.tasks[trial.candidate.task_id].oracle is Oracle.READY
                )
                least = state._pace.least_batch(device_class)
                count = len(list(itertools.islice(ready, least)))
                enough = count >= least or (count and state._builds.nothing_soon(self.now))
                assert not enough, "a device is idle while there is work for it"

    def check_end(self) -> None:
        """What must hold when a run has ended by itself: nothing lost, nothing twice, nothing under way."""
        assert self.finished
        trials = self.trials()
        assert len({record.candidate.id for record in trials}) == len(trials)
        # The oracle of a task all of whose candidates did not build may come too late.
        wanted = any(job.trial is not None for job in self.state._builds._jobs.values())
        assert not wanted or self.state._stopped or self.limits.time_budget_secs is not None
        for task in self.state.tasks.values():
            assert task.trials == sum(record.task_id == task.task.id for record in trials)
        for record in self.records:
            assert record.measurement.outcome.blames_candidate
        if not self.losses:  # a lease that nobody was told of may be given twice
            self.check_leases()

    def check_leases(self) -> None:
        """Epochs only grow, by one for each lease, and nothing ran without a lease of its own."""
        before: dict[str, DeviceState] = {}
        for event in self.events:
            assert event.reason
            earlier = before.get(event.device_id)
            if earlier is not None:
                assert event.state.lease.epoch == earlier.lease.epoch + (event.kind == "leased")
            if event.kind == "leased":
                assert event.state.word in ("good",)
            before[event.device_id] = event.state
        for name, epochs in self.measured_under.items():
            leased = [e.state.lease.epoch for e in self.events if e.device_id == name and e.kind == "leased"]
            assert epochs == leased == sorted(set(leased))

    def trials(self) -> list[Record]:
        """The records of trials, without revisions."""
        return [record for record in self.records if record.revision == 0]

    def outcomes(self) -> Counter[Outcome]:
        """How many trials ended how."""
        return Counter(record.measurement.outcome for record in self.trials())

    def kinds(self, device_id: str) -> list[str]:
        """What happened to a device, leases left out."""
        kinds = [event.kind for event in self.events if event.device_id == device_id]
        return [kind for kind in kinds if kind not in ("leased", "released")]

    # Carry out --------------------------------------------------------------------------------------------------------

    def _later(self, at: float, happening: ev.Event | Callable[[], None]) -> None:
        heapq.heappush(self._heap, (at, next(self._order), happening))

    def _do(self, commands: Sequence[to_do.Command]) -> None:
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: to_do.Command) -> None:
        match command:
            case to_do.Propose():
                self._propose(command)
            case to_do.Build():
                self._build(command)
            case to_do.Check(device_id):
                self._probe(device_id)
            case to_do.Measure():
                self._measure(command)
            case to_do.ShootOut():
                self._shoot_out(command)
            case to_do.RestartDevice(device_id):
                self.restarts[device_id] += 1
            case to_do.RestartSearcher(task_id):
                self.restarts[task_id] += 1
            case to_do.RecordFailure(candidate, trace, measurement):
                record = self._record(candidate, trace, measurement, "")
                self._failures[record.uid] = record
                self._later(self.now + self._durable_secs(), lambda: self._append_failure(record))
            case to_do.KeepDeviceEvents(events):
                for event in events:
                    self.events.append(event)
                    self.epochs[event.device_id] = event.state.lease.epoch
                    self.held[event.device_id] = event.state.lease.epoch if event.state.lease.held else -1
                self._later(self.now + self._durable_secs(), ev.DeviceEventsKept())
            case to_do.CatchUp():
                self._tell()
                self._later(self.now, ev.CaughtUp())
            case to_do.Say(_, text):
                self.lines.append(text)
            case to_do.Forget(candidate_ids):
                self.built -= set(candidate_ids)
            case to_do.Finish():
                self.finished = True
            case to_do.Abort(error):
                self.error = error

    def _append_failure(self, record: Record) -> None:
        if self._failures.pop(record.uid, None) is not None:
            self._append([record])

    def _scheduler_is_lost(self) -> None:
        """With all that it waited for. The one that takes its place ends the leases, has the searchers forget what
        they proposed, and begins with what is durable."""
        if self.state._stopped or self.finished or self.error:
            return
        self.losses += 1
        others = (ev.Ordered, ev.StopRequested, ev.ClassAwaited, ev.Described, ev.Undescribable)
        self._heap = [each for each in self._heap if callable(each[2]) or isinstance(each[2], others)]
        heapq.heapify(self._heap)
        sent = [record for record in self._failures.values() if self._rng.random() < 0.5]
        self._failures.clear()
        self._append(sent)
        progress = self.state.progress(self.now)
        states = dict(self.device_states) | {event.device_id: event.state for event in self.events}
        for name in self.devices:
            self.epochs[name] = states.get(name, DeviceState()).lease.epoch + 1
            self.held[name] = -1
            states[name] = dataclasses.replace(states.get(name, DeviceState()), lease=Lease(epoch=self.epochs[name]))
        durable = {record.candidate.id for record in self.records}
        for task in self.tasks:
            candidates = (candidate_of(task, at) for at in range(self.supply))
            self._planned[task.id] = deque(each for each in candidates if each.id not in durable)
            self._offers[task.id] = 0
        self._asked.clear()
        self.built.clear()
        late = {task.id for task in self.tasks if task.device_class.name in self.joins}
        described = [at for each, at in self.described_at.items() if at <= self.now and each not in late]
        before = Before(max(self.now, 1e-3), max(described, default=0.0), progress.notices, progress.device_changes)
        self.state = RunState(self._plan(before), TaskBandit(self.seed))
        given = {at: each for at, each in self.script.items() if isinstance(each, ev.Ordered) and at <= self.now}
        orders = {given[at].device_id: (given[at].admin, given[at].reason) for at in sorted(given)}
        self._do(self.state.handle(ev.Restored(states, orders), self.now))
        self._told = 0
        self._tell()
        self._do(self.state.handle(ev.CaughtUp(), self.now))

    def _propose(self, command: to_do.Propose) -> None:
        task_id = command.task_id
        assert self.described_at.get(task_id, 0.0) <= self.now, "no searcher knows the task yet"
        assert task_id not in self.left_out & self.described_at.keys()
        if self._rng.random() < self.searcher_restarts:
            durable = {record.candidate.id for record in self.records}
            task = self.state.tasks[task_id].task
            candidates = (candidate_of(task, at) for at in range(self.supply))
            self._planned[task_id] = deque(each for each in candidates if each.id not in durable)
            self._offers[task_id] = 0
        planned = self._planned[task_id]
        if self._offers[task_id] > command.taken:
            planned.extendleft(reversed(self._last_offer[task_id]))
        candidates = tuple(planned.popleft() for _ in range(min(command.count, len(planned))))
        self._offers[task_id] = max(self._offers[task_id], command.taken) + 1
        self._last_offer[task_id] = candidates
        at = self.now + self.propose_secs
        answer: ev.Proposed | ev.ProposalLost = ev.Proposed(
            task_id, self._offers[task_id], candidates, not planned, 1.0
        )
        if self._rng.random() < self.proposals_lost:
            answer = ev.ProposalLost(task_id, "no answer")
        self._asked[task_id] = answer
        dies = self.state.tasks[task_id].task.workload.name in self.searcher_dies
        self._later(at, self._searcher_dies if dies else lambda: self._searcher_answers(answer))

    def _searcher_answers(self, answer: ev.Proposed | ev.ProposalLost) -> None:
        if self._asked.get(answer.task_id) is answer:
            del self._asked[answer.task_id]
            self._do(self.state.handle(answer, self.now))

    def _searcher_dies(self) -> None:
        """With all that it was asked for."""
        asked, self._asked = self._asked, {}
        for task_id in asked:
            self._do(self.state.handle(ev.ProposalLost(task_id, "its process ended"), self.now))

    def _build(self, command: to_do.Build) -> None:
        secs = self.build_secs * self._rng.uniform(0.5, 1.5)
        secs += (
            self.oracle_secs if command.candidate is None else self.slow_builds.get(command.candidate.decisions[0], 0.0)
        )
        at = self.now + min(secs, command.timeout_secs)
        if command.builder % self.builders >= self.builders_that_start and within(self.starts_fail, self.now):
            self._later(self.now + 0.1, ev.BuilderLost(command.builder, "it does not start", ev.Cause.NOT_BEGUN))
            return
        if self.builders_absent and self._rng.random() < self.builders_absent:
            self._later(self.now + 0.01, ev.BuilderLost(command.builder, "it is not there", ev.Cause.ABSENT))
            return
        if self._rng.random() < self.builders_lost:
            self._later(at, ev.BuilderLost(command.builder, "no answer", ev.Cause.JOB))
            return
        if self.builds_killed and self._rng.random() < self.builds_killed:
            self._later(at, ev.BuilderLost(command.builder, "its process ended", ev.Cause.OUTSIDE))
            return
        failure = Measurement(Outcome.BUILD_ERROR, detail="it does not build")
        if secs > command.timeout_secs:
            failure = Measurement(Outcome.BUILD_TIMEOUT, build_secs=command.timeout_secs, detail="it takes too long")
            self._later(at, ev.Built(command.builder, failure, "trace"))
            return
        if command.candidate is None:
            fails = command.task.workload.name in self.oracle_fails
        else:
            fails = command.candidate.decisions[0] in self.build_fails
        if not fails:
            name = command.task.id if command.candidate is None else command.candidate.id
            self.built.add(name)
            self.built_ever.add(name)
        self._later(at, ev.Built(command.builder, failure if fails else None, "trace"))

    def _probe(self, device_id: str) -> None:
        device = self.devices[device_id]
        self.probes[device_id] += 1
        if self._mishap(device_id, self.now, self.now):
            self._later(self.now + HANG_SECS, ev.Unreachable(device_id, "no answer", hangs=True))
        elif within(device.outages, self.now):
            self._later(self.now + 1.0, ev.Unreachable(device_id, "simulated outage"))
        elif within(device.probe_fails, self.now):
            self._later(self.now + 0.1, ev.ProbeFailed(device_id, "simulated"))
        else:
            if within(device.drifts, self.now):
                self._mark(device_id)
            self._later(self.now + 0.01, ev.Probed(device_id, 1e-3))

    def _mark(self, device_id: str) -> None:
        """The device was off of late: the last records of each task that it measured are stored once more, marked."""
        latest = [record for record in self.records if record.device_id == device_id][-6:]
        revisions = []
        for record in latest:
            revision = 1 + max(each.revision for each in self.records if each.candidate.id == record.candidate.id)
            measurement = dataclasses.replace(record.measurement, speed=1 / 1.5, speed_error=0.1)
            revisions.append(self._record(record.candidate, "trace", measurement, device_id, revision))
        self._append(revisions)

    def _measure(self, command: to_do.Measure) -> None:
        name = command.device_id
        device = self.devices[name]
        self.measured_under[name].append(command.epoch)
        assert all(each.id in self.built for each in command.candidates), "measured before it was built"
        assert {each.task_id for each in command.candidates} <= self.built, "measured without its oracle"
        limit_secs = self._limit_secs(name)
        assert set(command.limits.values()) == {limit_secs}
        assert command.deadline_secs >= 900.0 + 6 * self.oracle_run_secs + 7 * limit_secs * len(command.candidates)
        if self._waits_for_others(device, name, command.epoch):
            return
        if len(self.measured_under[name]) <= device.endings:
            self._later(self.now + HANG_SECS, ev.BatchLost(name, command.epoch, "its process ended", outside=True))
            return
        if any(each.decisions[0] in device.ends_owner for each in command.candidates):
            self._later(self.now + 0.1, ev.BatchLost(name, command.epoch, "its process ended", outside=True))
            return
        at, outcomes, records, detail = self.now, dict[str, Outcome](), list[Record](), ""
        for candidate in command.candidates:
            end = at + device.secs
            self.runs[candidate.id] += 1
            if overlaps(device.outages, at, end) or candidate.decisions[0] in device.poison:
                outcomes[candidate.id] = Outcome.DEVICE_LOST
                detail = "simulated outage"
                at = min(end, at + 5.0)
                break
            at = end
            if candidate.decisions[0] in device.killed:
                outcomes[candidate.id] = Outcome.KILLED
                continue
            cost = 1e-3 * (1 + candidate.decisions[0] % 7) * device.secs
            measurement = Measurement(Outcome.OK, (cost, cost, cost), build_secs=self.build_secs, verified=True)
            records.append(self._record(candidate, "trace", measurement, name))
            outcomes[candidate.id] = Outcome.OK
        self.busy_secs[name] += at - self.now
        mishap = self._mishap(name, self.now, at)
        if mishap == "hang":
            self._later(self.now + HANG_SECS, ev.BatchLost(name, command.epoch, "no sign of life", hangs=True))
            # It may come to itself: its results are refused then, and its answer is too late.
            self._later(self.now + 100.0, lambda: self._append(records, name, command.epoch))
            self._later(self.now + 100.0, ev.BatchMeasured(name, command.epoch, outcomes))
            return
        if mishap == "die":
            # After or before it has stored them, and in any case before it could say so.
            stored = records if self._rng.random() < 0.5 else []
            self._later(at, lambda: self._append(stored, name, command.epoch))
            self._later(at + 0.1, ev.BatchLost(name, command.epoch, "its process ended", outside=True))
            return
        self._later(at, lambda: self._append(records, name, command.epoch))
        self._later(at + 0.02, ev.BatchMeasured(name, command.epoch, outcomes, detail, {"drift": 1.0}))

    def _waits_for_others(self, device: Device, name: str, epoch: int) -> bool:
        if not within(device.others, self.now):
            return False
        self._later(self.now + 3.0, ev.Waits(name, "net (run 1)"))
        self._later(self.now + PATIENCE_SECS, ev.Waits(name, ""))
        self._later(self.now + PATIENCE_SECS, ev.Postponed(name, epoch))
        return True

    def _limit_secs(self, name: str) -> float:
        """What measuring a candidate may take on the device."""
        return run_limit(self.candidate_secs.get(name, self.rule.timeout_secs), self.floor_secs)

    def _shoot_out(self, command: to_do.ShootOut) -> None:
        name = command.device_id
        device = self.devices[name]
        self.measured_under[name].append(command.epoch)
        assert command.rule.timeout_secs == self._limit_secs(name)
        assert all(each.id in self.built for each, _ in command.finalists)
        assert command.task_id in self.built
        if self._waits_for_others(device, name, command.epoch):
            return
        end = self.now + device.secs * 6 * len(command.finalists)
        if self._mishap(name, self.now, end):
            self._later(self.now + HANG_SECS, ev.BatchLost(name, command.epoch, "no sign of life", hangs=True))
            return
        if overlaps(device.outages, self.now, end):
            self._later(end, ev.ShotOut(name, command.epoch, "simulated outage"))
            return
        records = []
        incumbent = command.incumbent
        for candidate, revision in command.finalists:
            if candidate.id == incumbent.candidate_id:
                continue
            cost = 1e-3 * (1 + candidate.decisions[0] % 7) * device.secs
            ratio = cost / incumbent.cost_secs
            met = Comparison(incumbent.candidate_id, incumbent.rank_secs, ratio, 0.005, 6, ratio < 0.97)
            measurement = Measurement(Outcome.OK, (cost,) * 6, verified=True, stopped="duel", comparison=met)
            if met.faster:
                incumbent = Incumbent(candidate.id, cost, measurement.rank_secs)
            records.append(self._record(candidate, "trace", measurement, name, revision))
        self.met.append((name, command.task_id))
        self._later(end, lambda: self._append(records, name, command.epoch))
        self._later(end + 0.02, ev.ShotOut(name, command.epoch))

    def _durable_secs(self) -> float:
        return self.recorder_secs * self._rng.uniform(0.5, 2.0)

    def _mishap(self, name: str, begin: float, end: float) -> str:
        """What happens to the process that owns the device before ``end``; each mishap once."""
        coming = self._mishaps[name]
        if coming and coming[0][0] <= end:
            return coming.pop(0)[1]
        assert begin <= end
        return ""

    def _record(
        self, candidate: Candidate, trace: str, measurement: Measurement, device_id: str, revision: int = 0
    ) -> Record:
        uid = f"{self.run_id}-{candidate.id}-{revision}"
        return Record(uid, self.run_id, candidate, trace, measurement, device_id, self.now, revision=revision)

    def _append(self, records: Sequence[Record], device_id: str = "", epoch: int = 0) -> None:
        """What the recorder does: a result from an old lease is refused, the same record is stored once."""
        if device_id and not (self.held.get(device_id) == epoch or epoch > self.epochs.get(device_id, 0)):
            return
        fresh = [record for record in records if record.uid not in self._uids]
        self._uids |= {record.uid for record in fresh}
        start = len(self.records) + 1
        fresh = [dataclasses.replace(record, seq=start + at_) for at_, record in enumerate(fresh)]
        self.records += fresh
        if fresh:
            self._later(self.now + self._durable_secs(), self._tell)

    def _tell(self) -> None:
        """Everything that is durable is told now, the last records twice."""
        fresh = tuple(self.records[max(0, self._told - 2) :])
        self._told = len(self.records)
        self._do(self.state.handle(ev.Committed(fresh), self.now))


def played(devices: dict[str, Device], **settings: object) -> World:
    """A run to its end, with nothing lost or doubled where that is no error."""
    world = World(devices, **settings).play()  # type: ignore[arg-type]
    if world.error is None:
        world.check_end()
    return world
