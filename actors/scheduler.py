"""The task scheduler: grants trials to tasks and moves each candidate through build and measurement.

Its state is rebuilt from the records alone (resume is the same path as start); what it holds besides is only what is
under way: candidates waiting for a build, artifacts waiting for a device. Every queue is bounded, and a full queue
slows the granting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.calls import ActorLostError, ActorTimeoutError, ask, first_line
from actors.recorder import make_record
from devices.artifact import BuildFailure, BuildRequest
from fleet_tune.domain import Candidate, Measurement, Outcome, Record, StopRule, Task
from fleet_tune.results import Progress, TaskProgress
from policies.bandits import TaskState
from policies.presets import preset

_LOG = logging.getLogger(__name__)
_GRANT = 8  # candidates proposed by one grant
_WAITING_PER_BUILDER = 8  # candidates that may wait for a builder, each
_IN_FLIGHT = 40  # candidates of one device class under way at once
_BATCH = 12  # artifacts measured in one quiet window, at most
_MIN_BATCH = 6  # a window for fewer is opened only when no build is under way
_ATTEMPTS = 2  # a candidate that loses this many devices is poison
_PROPOSE_DEADLINE_SECS = 60.0
_FOLLOW_SECS = 2.0
_RATE_WINDOW_SECS = 20.0


@dataclass(frozen=True)
class SchedulerPlan:
    """What to tune, by which method. By task id: ``sketch_rules``, the rules of its sketches, and ``floor_secs``, a
    cost that no schedule can beat. ``time_budget_secs`` and ``trial_limit``: None without a limit; the limit counts
    the trials of earlier runs in the same store too."""

    run_id: str
    method: str
    tasks: tuple[Task, ...]
    sketch_rules: Mapping[str, tuple[str, ...]]
    floor_secs: Mapping[str, float]
    trial_limit: int | None
    time_budget_secs: float | None
    build_timeout_secs: float
    seed: int
    rule: StopRule = field(default_factory=StopRule)


@dataclass
class _Trial:
    candidate: Candidate
    artifact: Any = None  # object reference of the built artifact
    attempts: int = 0


@dataclass
class _TaskTrials:
    """What the records say of one task, and what is under way."""

    task: Task
    floor_secs: float
    trials: int = 0
    best_secs: float = math.inf
    best_sketch: int = -1
    in_flight: int = 0  # granted, and its record not yet read
    finished: str = ""  # the reason, empty while the task is tuned

    best_history: list[float] = field(default_factory=list)  # incumbent's cost after each trial

    def state(self) -> TaskState:
        """What the bandit sees."""
        return TaskState(
            weight=self.task.weight,
            flop=self.task.workload.flop,
            best_history=tuple(self.best_history),
            pending=self.in_flight,
            finished=bool(self.finished),
            floor_secs=self.floor_secs,
        )


class Scheduler:
    """Async actor: ``run`` ends when the budget is used, every task is finished, or ``stop`` was called."""

    def __init__(
        self,
        plan: SchedulerPlan,
        recorder: Any,
        searchers: Mapping[str, Any],
        builders: Sequence[Any],
        devices: Mapping[str, tuple[str, Any]],
    ) -> None:
        """``searchers``: the searcher of each task id. ``devices``: device id to (device class name, actor)."""
        self._plan = plan
        self._recorder = recorder
        self._searchers = searchers
        self._builders = builders
        self._devices = devices
        self._bandit = preset(plan.method).make_task_bandit(plan.seed)
        self._tasks = {task.id: _TaskTrials(task, plan.floor_secs[task.id]) for task in plan.tasks}
        self._outcomes: Counter[Outcome] = Counter()
        self._new_trials = 0
        self._cursor = 0
        self._replayed = False
        self._build_queue: asyncio.Queue[_Trial | Task] = asyncio.Queue(_WAITING_PER_BUILDER * len(builders))
        self._built: dict[str, deque[_Trial]] = {name: deque() for name, _ in devices.values()}
        self._building = 0
        self._references: dict[str, asyncio.Future[Any]] = {}
        self._device_state = dict.fromkeys(devices, "good")
        self._changed = asyncio.Condition()
        self._stopping = asyncio.Event()
        self._started = time.monotonic()
        self._recent: deque[float] = deque()
        self._phase = "starting"

    # What others ask -------------------------------------------------------------------------------------------------

    async def progress(self) -> Progress:
        """A snapshot for views and metrics."""
        now = time.monotonic()
        while self._recent and self._recent[0] < now - _RATE_WINDOW_SECS:
            self._recent.popleft()
        window = min(_RATE_WINDOW_SECS, max(now - self._started, 1e-9))
        return Progress(
            phase=self._phase,
            elapsed_secs=now - self._started,
            time_budget_secs=self._plan.time_budget_secs,
            trial_limit=self._plan.trial_limit,
            trials=self._trials(),
            new_trials=self._new_trials,
            outcomes={outcome.value: count for outcome, count in self._outcomes.items()},
            records_per_sec=len(self._recent) / window,
            queues={
                "build": self._build_queue.qsize(),
                "building": self._building,
                "measure": sum(map(len, self._built.values())),
            },
            devices=dict(self._device_state),
            tasks=tuple(self._task_progress(state) for state in self._tasks.values()),
        )

    async def stop(self) -> None:
        """Stop granting; ``run`` returns when the measurement under way is stored."""
        self._stopping.set()
        await self._notify()

    async def run(self) -> None:
        """Tune. Raises what ended it early: a lost recorder, no device left."""
        self._started = time.monotonic()
        workers = [asyncio.create_task(self._follow())]
        try:
            await self._until(lambda: self._replayed)
            self._phase = "tuning"
            grants = [asyncio.create_task(self._grant(name)) for name in self._built]
            workers += [asyncio.create_task(self._build(builder)) for builder in self._builders]
            measuring = [asyncio.create_task(self._measure(name)) for name in self._devices]
            workers += grants
            done = asyncio.gather(*grants)
            await self._first_failure_or(done, [*workers, *measuring])
            # Nothing more is granted; what is measured now is stored, what is only built is dropped.
            self._stopping.set()
            await self._notify()
            self._phase = "finishing"
            await self._first_failure_or(asyncio.gather(*measuring), [workers[0]])
            await self._catch_up()
        finally:
            self._phase = "finished"
            for worker in workers:
                worker.cancel()

    # The stages ------------------------------------------------------------------------------------------------------

    async def _grant(self, device_class: str) -> None:
        """Grant trials to tasks of one device class until nothing more is to be tuned, then wait for what is out."""
        states = [state for state in self._tasks.values() if state.task.device_class.name == device_class]
        while not self._over():
            if not any(not state.finished for state in states) or not self._room():
                if self._in_flight(states) == 0:
                    return
                await self._wait_for_change()
                continue
            queued = self._build_queue.qsize() + _GRANT > self._build_queue.maxsize
            if queued or self._in_flight(states) + _GRANT > _IN_FLIGHT:
                await self._wait_for_change()
                continue
            choice = self._bandit.choose([state.state() for state in states])
            if choice is None:
                await self._wait_for_change()
                continue
            state = states[choice.index]
            await self._propose(state, min(_GRANT, self._room()))

    async def _propose(self, state: _TaskTrials, count: int) -> None:
        task = state.task
        try:
            candidates = await ask(
                self._searchers[task.id].propose.remote(task.id, count), _PROPOSE_DEADLINE_SECS, "propose candidates"
            )
        except (ActorLostError, ActorTimeoutError) as error:
            # Ray restarts the searcher, which replays the records: try again.
            _LOG.warning("searcher of %s: %s", task.workload.name, error)
            await asyncio.sleep(1.0)
            return
        if not candidates:
            if state.in_flight == 0:
                state.finished = "space exhausted"
            else:
                await self._wait_for_change()
            return
        if task.id not in self._references:
            self._references[task.id] = asyncio.get_running_loop().create_future()
            await self._build_queue.put(task)
        state.in_flight += len(candidates)
        for candidate in candidates:
            await self._build_queue.put(_Trial(candidate))

    async def _build(self, builder: Any) -> None:
        """Feed one builder."""
        while True:
            item = await self._build_queue.get()
            await self._notify()
            if self._over():
                if isinstance(item, Task):
                    self._references[item.id].set_result(None)
                continue
            if isinstance(item, Task):
                task, candidate = item, None
            else:
                task, candidate = self._tasks[item.candidate.task_id].task, item.candidate
            request = BuildRequest(task, candidate, self._plan.build_timeout_secs)
            self._building += 1
            try:
                failure_ref, artifact_ref = builder.build.options(num_returns=2).remote(request)
                failure: BuildFailure | None = await ask(failure_ref, self._plan.build_timeout_secs + 60.0, "build")
            except (ActorLostError, ActorTimeoutError) as error:
                failure = BuildFailure(task.id, candidate, "", Measurement(Outcome.BUILD_ERROR, detail=str(error)))
            finally:
                self._building -= 1
            if isinstance(item, Task):
                self._settle_reference(item, artifact_ref, failure)
            elif failure is None:
                item.artifact = artifact_ref
                self._built[task.device_class.name].append(item)
            else:
                await self._record_failure(item, failure.trace, failure.measurement)
            await self._notify()

    async def _measure(self, device_id: str) -> None:
        """Feed one device, a batch at a time, until the session is over."""
        device_class, device = self._devices[device_id]
        referenced: set[str] = set()
        while not self._over():
            batch = await self._next_batch(device_class)
            batch = await self._with_references(device, batch, referenced)
            if not batch:
                continue
            deadline = 60.0 + len(batch) * (2 * self._plan.rule.timeout_secs + 5.0)
            refs = [trial.artifact for trial in batch]
            try:
                outcomes = dict(
                    await ask(device.measure.remote(refs, self._plan.rule, self._recorder), deadline, "measure")
                )
            except (ActorLostError, ActorTimeoutError) as error:
                _LOG.warning("device %s: %s", device_id, error)
                outcomes = {trial.candidate.id: Outcome.DEVICE_LOST for trial in batch}
                referenced.clear()
            lost = [trial for trial in batch if outcomes[trial.candidate.id] is Outcome.DEVICE_LOST]
            self._device_state[device_id] = "lost" if lost else "good"
            for trial in lost:
                await self._retry(trial, device_class)
            await self._notify()
            if lost and not self._over():
                await asyncio.sleep(1.0)

    async def _next_batch(self, device_class: str) -> list[_Trial]:
        """Artifacts for one quiet window: several, since the builders of a shared host stand still meanwhile."""
        queue = self._built[device_class]

        def ready() -> bool:
            idle = self._building == 0 and self._build_queue.empty()
            return self._over() or len(queue) >= _MIN_BATCH or (len(queue) > 0 and idle)

        await self._until(ready)
        if self._over():
            return []
        batch = [queue.popleft() for _ in range(min(_BATCH, len(queue)))]
        await self._notify()
        return batch

    async def _with_references(self, device: Any, batch: list[_Trial], referenced: set[str]) -> list[_Trial]:
        """Give the device the unscheduled programs it lacks; drops the trials of tasks that have none."""
        kept = []
        for trial in batch:
            task_id = trial.candidate.task_id
            state = self._tasks[task_id]
            if task_id not in referenced:
                reference = await self._references[task_id]
                if reference is None:
                    state.in_flight -= 1
                    continue
                try:
                    await ask(device.add_reference.remote(reference, state.best_secs), 60.0, "add a reference")
                except (ActorLostError, ActorTimeoutError) as error:
                    _LOG.warning("reference of %s: %s", state.task.workload.name, error)
                    await self._retry(trial, state.task.device_class.name)
                    continue
                referenced.add(task_id)
            kept.append(trial)
        return kept

    def _settle_reference(self, task: Task, artifact: Any, failure: BuildFailure | None) -> None:
        if failure is not None:
            reason = f"the unscheduled program does not build: {failure.measurement.detail}"
            _LOG.error("%s: %s", task.workload.name, reason)
            self._tasks[task.id].finished = reason
        self._references[task.id].set_result(None if failure else artifact)

    async def _record_failure(self, trial: _Trial, trace: str, measurement: Measurement) -> None:
        record = make_record(trial.candidate, trace, measurement, self._plan.run_id, "")
        await ask(self._recorder.append.remote([record]), 30.0, "store a failure")

    async def _retry(self, trial: _Trial, device_class: str) -> None:
        """A lost device is not the candidate's fault the first time; the second time it is blamed."""
        trial.attempts += 1
        if trial.attempts < _ATTEMPTS:
            self._built[device_class].append(trial)
            return
        poison = Measurement(Outcome.RUN_ERROR, detail=f"poison: its device was lost {trial.attempts} times")
        await self._record_failure(trial, "", poison)

    # Records ---------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            wait_secs = _FOLLOW_SECS if self._replayed else 0.0
            records = await ask(self._recorder.follow.remote(self._cursor, wait_secs), 30.0, "follow the records")
            if not records and not self._replayed:
                self._replayed = True
                self._recent.clear()
            self._absorb(records)
            await self._notify()

    async def _catch_up(self) -> None:
        while records := await ask(self._recorder.follow.remote(self._cursor, 0.0), 30.0, "follow the records"):
            self._absorb(records)

    def _absorb(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.seq <= self._cursor:
                continue  # read twice: by the follower and by the final catch-up
            self._cursor = record.seq
            self._outcomes[record.measurement.outcome] += 1
            if record.run_id == self._plan.run_id:
                self._new_trials += 1
                self._recent.append(time.monotonic())
            state = self._tasks.get(record.task_id)
            if state is None:
                continue
            state.trials += 1
            if record.run_id == self._plan.run_id:
                state.in_flight -= 1
            if record.measurement.verified and record.measurement.cost_secs < state.best_secs:
                state.best_secs = record.measurement.cost_secs
                state.best_sketch = record.candidate.sketch
            state.best_history.append(state.best_secs)

    # State -----------------------------------------------------------------------------------------------------------

    def _task_progress(self, state: _TaskTrials) -> TaskProgress:
        rules = self._plan.sketch_rules[state.task.id]
        return TaskProgress(
            task_id=state.task.id,
            name=state.task.workload.name,
            device_class=state.task.device_class.name,
            weight=state.task.weight,
            flop=state.task.workload.flop,
            sketches=len(rules),
            trials=state.trials,
            best_secs=state.best_secs,
            finished=bool(state.finished),
            best_rule=rules[state.best_sketch] if state.best_sketch >= 0 else "",
        )

    def _trials(self) -> int:
        return sum(state.trials for state in self._tasks.values())

    def _in_flight(self, states: Sequence[_TaskTrials]) -> int:
        return sum(state.in_flight for state in states)

    def _room(self) -> int:
        """Trials that may still be granted."""
        if self._plan.trial_limit is None:
            return _GRANT
        return max(0, self._plan.trial_limit - self._trials() - self._in_flight(list(self._tasks.values())))

    def _over(self) -> bool:
        budget = self._plan.time_budget_secs
        return self._stopping.is_set() or (budget is not None and time.monotonic() - self._started >= budget)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, condition: Any) -> None:
        while not condition():
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        """Until something moved, or half a second: the time budget ends without an event."""
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.5)

    async def _first_failure_or(self, done: Any, workers: Sequence[asyncio.Task[None]]) -> None:
        """Wait for ``done``; a worker that fails meanwhile ends the wait with its error."""
        pending = {asyncio.ensure_future(done), *workers}
        while not done.done():
            finished, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for worker in finished:
                if worker is not done and worker.exception() is not None:
                    _LOG.error("scheduler stage failed: %s", first_line(worker.exception() or RuntimeError()))
                worker.result()
