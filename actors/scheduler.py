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

from actors.calls import WINDOW_WAIT_SECS, ActorLostError, ActorTimeoutError, ask, first_line
from actors.recorder import make_record
from actors.searcher import Offer
from devices.artifact import BuildFailure, BuildRequest
from fleet_tune.domain import Candidate, Measurement, Outcome, Record, StopRule, Task
from fleet_tune.errors import DevicesLostError, DeviceUnreachableError
from fleet_tune.results import Progress, TaskProgress
from policies.bandits import CONVERGENCE_GAIN, CONVERGENCE_TRIALS, TaskState, is_finished
from policies.presets import preset

_LOG = logging.getLogger(__name__)
_GRANT = 8  # candidates proposed by one grant
_WAITING_PER_BUILDER = 8  # candidates that may wait for a builder, each
_IN_FLIGHT = 40  # candidates of one device class under way at once
_BATCH = 12  # artifacts measured in one quiet window, at most
_MIN_BATCH = 6  # a window for fewer is opened only when no build is under way
_ATTEMPTS = 2  # a candidate that loses this many devices is poison
_PROPOSE_DEADLINE_SECS = WINDOW_WAIT_SECS
_RETRY_SECS = 1.0
_FOLLOW_SECS = 2.0
_RATE_WINDOW_SECS = 20.0
_DEVICE_PATIENCE_SECS = 120.0


@dataclass(frozen=True)
class SchedulerPlan:
    """What to tune, by which method. By task id: ``sketch_rules``, the rules of its sketches, and ``floor_secs``, a
    cost that no schedule can beat. ``time_budget_secs``, ``trial_limit`` and ``task_limit`` (trials of every task):
    None without a limit; the limits count the trials of earlier runs in the same store too. ``device_patience_secs``:
    how long a run without a time budget waits for a device when all of a class are lost."""

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
    task_limit: int | None = None
    device_patience_secs: float = _DEVICE_PATIENCE_SECS


@dataclass
class _Trial:
    candidate: Candidate
    artifact: Any = None  # object reference of the built artifact
    lost_builders: int = 0
    lost_devices: int = 0


@dataclass
class _Reference:
    """The unscheduled program of a task, to be built."""

    task: Task
    lost_builders: int = 0


@dataclass
class _TaskTrials:
    """What the records say of one task, and what is under way."""

    task: Task
    floor_secs: float
    limit: int | None = None  # of trials
    trials: int = 0
    best_secs: float = math.inf
    best_sketch: int = -1
    under_way: set[str] = field(default_factory=set)  # ids of candidates granted and not yet recorded
    reserved: int = 0  # trials being granted at the moment
    offer: int = 0  # number of the last offer of candidates that arrived
    exhausted: bool = False  # every candidate is measured or under way
    finished: str = ""  # the reason, empty while the task is tuned
    best_history: list[float] = field(default_factory=list)  # incumbent's cost after each trial

    @property
    def in_flight(self) -> int:
        return len(self.under_way) + self.reserved

    @property
    def room(self) -> int:
        """Trials that may be granted at once: none for a finished task."""
        if self.finished or self.exhausted:
            return 0
        return _GRANT if self.limit is None else min(_GRANT, max(0, self.limit - self.trials - self.in_flight))

    def state(self) -> TaskState:
        """What the bandit sees."""
        return TaskState(
            weight=self.task.weight,
            flop=self.task.workload.flop,
            best_history=tuple(self.best_history),
            pending=self.in_flight,
            finished=self.room == 0,
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
        self._tasks = {task.id: _TaskTrials(task, plan.floor_secs[task.id], plan.task_limit) for task in plan.tasks}
        self._outcomes: Counter[Outcome] = Counter()
        self._new_trials = 0
        self._cursor = 0
        self._replayed = False
        # Bounded by the granting, which looks at its length: a builder that puts work back must never wait.
        self._build_queue: asyncio.Queue[_Trial | _Reference] = asyncio.Queue()
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
            trial_limit=self._limit(),
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
        """Tune. Raises what ended it early: a recorder that is lost or cannot store."""
        self._started = time.monotonic()
        workers = [asyncio.create_task(self._follow())]
        try:
            await self._until(lambda: self._replayed)
            self._phase = "tuning"
            grants = [asyncio.create_task(self._grant(name)) for name in self._built]
            workers += [asyncio.create_task(self._build(builder)) for builder in self._builders]
            measuring = [asyncio.create_task(self._measure(name)) for name in self._devices]
            workers += [*grants, *measuring]
            done = asyncio.gather(*grants)
            await self._first_failure_or(done, workers)
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
            if not any(state.room for state in states) or not self._room():
                if self._in_flight(states) == 0:
                    return
                await self._wait_for_change()
                continue
            queued = self._build_queue.qsize() + _GRANT > _WAITING_PER_BUILDER * len(self._builders)
            if queued or self._in_flight(states) + _GRANT > _IN_FLIGHT:
                await self._wait_for_change()
                continue
            choice = self._bandit.choose([state.state() for state in states])
            if choice is None:
                await self._wait_for_change()
                continue
            state = states[choice.index]
            await self._propose(state, min(state.room, self._room()))

    async def _propose(self, state: _TaskTrials, count: int) -> None:
        task = state.task
        state.reserved = count
        try:
            proposing = self._searchers[task.id].propose.remote(task.id, count, state.offer)
            offer: Offer = await ask(proposing, _PROPOSE_DEADLINE_SECS, "propose candidates")
        except (ActorLostError, ActorTimeoutError) as error:
            # Ray restarts the searcher, which replays the records: try again.
            _LOG.warning("searcher of %s: %s", task.workload.name, error)
            await asyncio.sleep(_RETRY_SECS)
            return
        finally:
            state.reserved = 0
        state.offer = offer.number
        # Without a candidate, nothing new was found in a space that is nearly exhausted.
        state.exhausted = offer.exhausted or not offer.candidates
        if is_finished(state.best_history, False, offer.predicted_gain):
            gains = f"{CONVERGENCE_TRIALS} trials gained less than {CONVERGENCE_GAIN:.0%}"
            self._finish(state, f"converged: {gains}, and so will the next one ({offer.predicted_gain:.2%} expected)")
            return
        if not offer.candidates:
            self._finish_exhausted(state)
            return
        if task.id not in self._references:
            self._references[task.id] = asyncio.get_running_loop().create_future()
            self._build_queue.put_nowait(_Reference(task))
        for candidate in offer.candidates:
            # A restarted searcher knows what is recorded, not what is under way.
            if candidate.id not in state.under_way:
                state.under_way.add(candidate.id)
                self._build_queue.put_nowait(_Trial(candidate))
        self._finish_exhausted(state)

    async def _build(self, builder: Any) -> None:
        """Feed one builder."""
        while True:
            item = await self._build_queue.get()
            await self._notify()
            if self._over():
                if isinstance(item, _Reference):
                    self._references[item.task.id].set_result(None)
                continue
            if isinstance(item, _Reference):
                task, candidate = item.task, None
            else:
                task, candidate = self._tasks[item.candidate.task_id].task, item.candidate
            request = BuildRequest(task, candidate, self._plan.build_timeout_secs)
            self._building += 1
            artifact_ref = None
            try:
                failure_ref, artifact_ref = builder.build.options(num_returns=2).remote(request)
                deadline = self._plan.build_timeout_secs + WINDOW_WAIT_SECS
                failure: BuildFailure | None = await ask(failure_ref, deadline, "build")
            except (ActorLostError, ActorTimeoutError) as error:
                # The builder's fault, not the candidate's, unless it happens to it again.
                _LOG.warning("builder: %s", error)
                item.lost_builders += 1
                if item.lost_builders < _ATTEMPTS:
                    self._build_queue.put_nowait(item)
                    await asyncio.sleep(_RETRY_SECS)
                    continue
                failure = BuildFailure(task.id, candidate, "", Measurement(Outcome.BUILD_ERROR, detail=str(error)))
            finally:
                self._building -= 1
            if isinstance(item, _Reference):
                self._settle_reference(task, artifact_ref, failure)
            elif failure is None:
                item.artifact = artifact_ref
                self._built[task.device_class.name].append(item)
            else:
                await self._record_failure(item, failure.trace, failure.measurement)
            await self._notify()

    async def _measure(self, device_id: str) -> None:
        """Feed one device, a batch at a time, until the session is over."""
        device_class, device = self._devices[device_id]
        while not self._over():
            batch, references = await self._with_references(await self._next_batch(device_class))
            if not batch:
                continue
            deadline = WINDOW_WAIT_SECS + len(batch) * (2 * self._plan.rule.timeout_secs + 5.0)
            artifacts = [trial.artifact for trial in batch]
            try:
                measuring = device.measure.remote(artifacts, references, self._plan.rule, self._recorder)
                outcomes = dict(await ask(measuring, deadline, "measure"))
            except (ActorLostError, ActorTimeoutError) as error:
                _LOG.warning("device %s: %s", device_id, error)
                outcomes = {trial.candidate.id: Outcome.DEVICE_LOST for trial in batch}
            lost = [trial for trial in batch if outcomes[trial.candidate.id] is Outcome.DEVICE_LOST]
            if lost:
                self._device_state[device_id] = "lost"
                await self._retry(lost, device_class)
                await self._notify()
                await self._until_it_answers(device, device_class)
            self._device_state[device_id] = "lost" if lost and self._over() else "good"
            await self._notify()

    async def _until_it_answers(self, device: Any, device_class: str) -> None:
        """Nothing is given to a lost device before its reference kernel has run.

        DevicesLostError where no device of the class has answered for too long and no time budget would end the run.
        """
        lost_at = time.monotonic()
        while not self._over():
            try:
                await ask(device.fingerprint.remote(), WINDOW_WAIT_SECS, "probe a lost device")
                return
            except (ActorLostError, ActorTimeoutError, DeviceUnreachableError) as error:
                _LOG.warning("%s", error)
                waited_secs = time.monotonic() - lost_at
                if waited_secs >= self._plan.device_patience_secs and self._endless_without(device_class):
                    raise DevicesLostError(
                        f"no device of class {device_class} has answered for {waited_secs:.0f} s: {first_line(error)}",
                        "bring one back and run the same command again: it resumes",
                    ) from error
                await asyncio.sleep(_RETRY_SECS)

    def _endless_without(self, device_class: str) -> bool:
        """Whether the run would wait for ever: all devices of the class are lost, and there is no time budget."""
        states = [
            self._device_state[name] for name, (its_class, _) in self._devices.items() if its_class == device_class
        ]
        return self._plan.time_budget_secs is None and all(state == "lost" for state in states)

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

    async def _with_references(self, batch: list[_Trial]) -> tuple[list[_Trial], dict[str, tuple[list[Any], float]]]:
        """The trials whose task has an unscheduled program, and those programs with the incumbents' costs."""
        kept: list[_Trial] = []
        references: dict[str, tuple[list[Any], float]] = {}
        for trial in batch:
            state = self._tasks[trial.candidate.task_id]
            reference = await self._references[state.task.id]
            if reference is None:
                state.under_way.discard(trial.candidate.id)
            else:
                kept.append(trial)
                references[state.task.id] = ([reference], state.best_secs)
        return kept, references

    def _settle_reference(self, task: Task, artifact: Any, failure: BuildFailure | None) -> None:
        if failure is not None:
            reason = f"the unscheduled program does not build: {failure.measurement.detail}"
            _LOG.error("%s: %s", task.workload.name, reason)
            self._finish(self._tasks[task.id], reason)
        self._references[task.id].set_result(None if failure else artifact)

    async def _record_failure(self, trial: _Trial, trace: str, measurement: Measurement) -> None:
        record = make_record(trial.candidate, trace, measurement, self._plan.run_id, "")
        await ask(self._recorder.append.remote([record]), 30.0, "store a failure")

    async def _retry(self, lost: list[_Trial], device_class: str) -> None:
        """Only the first of a batch was running when the device was lost; the second time that happens to a candidate,
        it is blamed for it."""
        suspect = lost[0]
        suspect.lost_devices += 1
        if suspect.lost_devices >= _ATTEMPTS:
            detail = f"poison: its device was lost {suspect.lost_devices} times"
            await self._record_failure(suspect, "", Measurement(Outcome.RUN_ERROR, detail=detail))
            lost = lost[1:]
        self._built[device_class].extend(lost)

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
                state.under_way.discard(record.candidate.id)
            if record.measurement.verified and record.measurement.cost_secs < state.best_secs:
                state.best_secs = record.measurement.cost_secs
                state.best_sketch = record.candidate.sketch
            state.best_history.append(state.best_secs)
            self._finish_exhausted(state)

    def _finish_exhausted(self, state: _TaskTrials) -> None:
        """An exhausted task is finished when the last of its candidates is recorded."""
        if state.exhausted and state.in_flight == 0:
            self._finish(state, f"exhausted: all its candidates are measured ({state.trials})")

    def _finish(self, state: _TaskTrials, reason: str) -> None:
        """The task gets no more trials."""
        if not state.finished:
            state.finished = reason
            _LOG.info("%s on %s: %s", state.task.workload.name, state.task.device_class.name, reason)

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
            finish_reason=state.finished,
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

    def _limit(self) -> int | None:
        """The trials at which the run ends, as views show it."""
        if self._plan.task_limit is None:
            return self._plan.trial_limit
        return sum(max(state.trials, self._plan.task_limit) for state in self._tasks.values())

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
