"""A fleet in virtual time around the run state of :mod:`policies.runs`. The run state decides about grants, builds and
measurements, and this module gives their durations. There are no processes and no waits, so an hour of a thousand
devices takes minutes."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_tune.base.domain import Candidate, DeviceClass, Measurement, Outcome, Record, Task, Workload
from fleet_tune.base.results import DeviceTime
from policies.runs import commands as to_do
from policies.runs import events as ev
from policies.runs.plan import RunPlan
from policies.runs.planned_task import PlannedTask
from policies.runs.state import RunState
from policies.search.bandits import TaskBandit


@dataclass(frozen=True)
class Costs:
    """Durations in seconds; times of builds and candidates are log-normal around these medians."""

    propose_secs: float = 0.1
    """Seconds of a proposal."""
    propose_each_secs: float = 0.002
    """Seconds of each candidate of a proposal."""
    build_secs: float = 0.6
    """Median seconds of a build."""
    build_spread: float = 0.5
    """Standard deviation of the logarithm of a build's seconds."""
    candidate_spread: float = 0.3
    """Standard deviation of the logarithm of a candidate's seconds."""
    batch_secs: float = 0.02
    """Seconds of a batch in addition to its candidates: calls, probes, artifacts."""
    durable_secs: float = 0.15
    """Seconds until records are durable and the run state has read them. Meanwhile, a device measures at most one more
    batch."""
    probe_secs: float = 0.02
    """Seconds of a probe."""
    crashes: float = 0.019
    """Share of candidates that crash."""
    losses: float = 0.001
    """Share of candidates that lose their device."""
    away_secs: float = 5.0
    """Seconds that a lost device is away."""


@dataclass
class VirtualFleet:
    """Devices, builders and searchers in virtual time, on the real state of a run."""

    devices: Mapping[str, tuple[str, float]]
    """Device class and median seconds of a candidate, by the device's name."""
    builders: int
    """Number of builders."""
    tasks: int = 24
    """Tasks of each device class."""
    searchers: int = 1
    """Number of searchers that share the tasks."""
    costs: Costs = field(default_factory=Costs)
    """Durations and shares of faults."""
    seed: int = 0

    def __post_init__(self) -> None:
        classes = sorted({device_class for device_class, _ in self.devices.values()})
        tasks = [
            Task(Workload(f"task-{at}-{each}", f"task-{at}", 1e9, "{}"), DeviceClass(each, "{}"), weight=1 + at % 4)
            for at in range(self.tasks)
            for each in classes
        ]
        # Several searchers share the tasks of each class evenly.
        numbers = [at // len(classes) % self.searchers for at in range(len(tasks))]
        planned = [PlannedTask(task, ("rule",), 1e-6, searcher=at) for task, at in zip(tasks, numbers, strict=True)]
        plan = RunPlan(
            run_id="run",
            tasks=tuple(planned),
            devices={name: device_class for name, (device_class, _) in self.devices.items()},
            builders=self.builders,
        )
        self.state = RunState(plan, TaskBandit(self.seed))
        self.now = 0.0
        self.cpu_secs = 0.0  # processor time of the run state
        self.records = 0
        self.committed_at: list[float] = []
        self.busy: list[tuple[float, float, str]] = []  # spans in which a device of a class measured
        self.batches: Counter[str] = Counter()
        self.measured: Counter[str] = Counter()
        self._searcher = {each.task.id: each.searcher for each in planned}
        self._searcher_free = [0.0] * self.searchers
        self._away_until = dict.fromkeys(self.devices, 0.0)
        self._durable_at = dict.fromkeys(self.devices, 0.0)
        self._numbers: Counter[str] = Counter()
        self._unread: list[Record] = []
        self._heap: list[tuple[float, int, ev.Event | Callable[[], None]]] = []
        self._order = itertools.count()
        self._rng = random.Random(self.seed)

    def play(self, until_secs: float) -> None:
        """Play until this second of the run. May be called again with a later second."""
        if not self.now and not self._heap:
            self._handle(ev.DevicesRestored({}, {}))
            self._handle(ev.RecordsCaughtUp())
        while True:
            wake = self.state.wake_secs
            at = min(self._heap[0][0] if self._heap else until_secs, until_secs if wake is None else wake)
            if at >= until_secs:
                self.now = until_secs
                return
            self.now = max(self.now, at)
            if self._heap and self._heap[0][0] <= at:
                happening = heapq.heappop(self._heap)[2]
                if callable(happening):
                    happening()
                else:
                    self._handle(happening)
            else:
                self._handle(ev.Tick())

    def utilisation(self, from_secs: float, device_class: str | None = None) -> float:
        """Return the share of the time since ``from_secs`` in which the devices measured: all devices, or those of a
        class."""
        counts = Counter(each for each, _ in self.devices.values())
        count = counts.total() if device_class is None else counts[device_class]
        busy = sum(
            max(0.0, min(end, self.now) - max(begin, from_secs))
            for begin, end, each in self.busy
            if device_class in (None, each)
        )
        return busy / (count * (self.now - from_secs))

    def _later(self, secs: float, happening: ev.Event | Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + secs, next(self._order), happening))

    def _handle(self, event: ev.Event) -> None:
        began = time.process_time()
        commands = self.state.handle(event, self.now)
        self.cpu_secs += time.process_time() - began
        for command in commands:
            self._carry_out(command)

    def _carry_out(self, command: to_do.Command) -> None:
        costs = self.costs
        match command:
            case to_do.Propose():
                self._propose(command)
            case to_do.Build(builder):
                self._later(self._spread(costs.build_secs, costs.build_spread), ev.Built(builder))
            case to_do.ProbeDevice(device_id):
                away = self.now < self._away_until[device_id]
                answer = ev.DeviceUnreachable(device_id, "away") if away else ev.DeviceProbed(device_id, 1e-3)
                self._later(1.0 if away else costs.probe_secs, answer)
            case to_do.Measure():
                self._measure(command)
            case to_do.RecordFailure(candidate, measurement):
                self._append([self._record(candidate, measurement, "", "")])
            case to_do.StoreDeviceEvents():
                self._later(costs.durable_secs, ev.DeviceEventsStored())
            case to_do.Abort(error):
                raise error
            case to_do.Log() | to_do.DropArtifacts() | to_do.RestartDevice():
                pass
            case _:
                raise AssertionError(f"nothing in a virtual fleet asks for {command}")

    def _propose(self, command: to_do.Propose) -> None:
        task_id = command.task_id
        first = self._numbers[task_id]
        self._numbers[task_id] += command.count
        candidates = tuple(Candidate(task_id, 0, "s", (number,)) for number in range(first, self._numbers[task_id]))
        searcher = self._searcher[task_id]
        secs = self.costs.propose_secs + self.costs.propose_each_secs * command.count
        free = max(self.now, self._searcher_free[searcher]) + secs
        self._searcher_free[searcher] = free
        self._later(free - self.now, ev.Proposed(task_id, command.last_proposal + 1, candidates, False, 1.0))

    def _measure(self, command: to_do.Measure) -> None:
        name = command.device_id
        costs = self.costs
        secs, outcomes, records, detail = 0.0, dict[str, Outcome](), list[Record](), ""
        for candidate in command.candidates:
            draw = self._rng.random()
            secs += self._spread(self.devices[name][1], costs.candidate_spread)
            if draw < costs.losses:
                outcomes[candidate.id] = Outcome.DEVICE_LOST
                detail = "stated fault"
                self._away_until[name] = self.now + secs + costs.away_secs
                break
            crashed = draw < costs.losses + costs.crashes
            measurement = (
                Measurement(Outcome.RUN_ERROR, detail="stated fault")
                if crashed
                else Measurement(Outcome.OK, (1e-3 * (1 + self._rng.random()),) * 3, verified=True)
            )
            outcomes[candidate.id] = measurement.outcome
            records.append(self._record(candidate, measurement, name))
        self.busy.append((self.now, self.now + secs, self.devices[name][0]))
        self.batches[name] += 1
        self.measured[name] += len(command.candidates)
        measured_at = self.now + secs + costs.batch_secs
        waited_secs = max(0.0, self._durable_at[name] - measured_at)
        self._durable_at[name] = measured_at + waited_secs + costs.durable_secs
        after_secs = secs + costs.batch_secs + waited_secs
        self._later(after_secs, lambda: self._append(records))
        waits = {DeviceTime.COMMIT: waited_secs}
        self._later(after_secs, ev.BatchMeasured(name, command.epoch, outcomes, detail, waits=waits))

    def _record(self, candidate: Candidate, measurement: Measurement, device_id: str, trace: str = "") -> Record:
        return Record(candidate.id, "run", candidate, trace, measurement, device_id, self.now)

    def _append(self, records: Sequence[Record]) -> None:
        if not records:
            return
        if not self._unread:  # records that come until then are in the same commit
            self._later(self.costs.durable_secs, self._commit)
        self._unread += [dataclasses.replace(each, seq=self.records + at) for at, each in enumerate(records, 1)]
        self.records += len(records)

    def _commit(self) -> None:
        records, self._unread = tuple(self._unread), []
        self.committed_at += [self.now] * len(records)
        self._handle(ev.RecordsCommitted(records))

    def _spread(self, median: float, sigma: float) -> float:
        return median * self._rng.lognormvariate(0.0, sigma)
