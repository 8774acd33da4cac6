"""The task scheduler: grants trials to tasks and moves each candidate through build and measurement.

Its state is rebuilt from the records alone (resume is the same path as start); what it holds besides is only what is
under way: candidates waiting for a build, artifacts waiting for a device. Every queue is bounded, and a full queue
slows the granting.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors.board import GRANT, Board, Oracle, TaskTrials, Trial
from actors.calls import WINDOW_WAIT_SECS, ActorLostError, ActorTimeoutError, ask, first_line
from actors.dispatch import Dispatch
from actors.final_round import FinalRound
from actors.fleet_health import FleetHealth
from actors.recorder import make_record
from actors.remote_device import RemoteDevice
from actors.searcher import Offer
from devices.protocol import BuildFailure, BuildRequest
from fleet_tune.device_state import DeviceEvent
from fleet_tune.domain import Measurement, Outcome, Record, StopRule, Task
from fleet_tune.records.orders import FleetOrders
from fleet_tune.results import Progress, TaskProgress
from policies.measuring import health
from policies.measuring.shootout import reserve_secs
from policies.search.bandits import CONVERGENCE_GAIN, CONVERGENCE_TRIALS, is_finished
from policies.search.methods import preset

_LOG = logging.getLogger(__name__)
_WAITING_PER_BUILDER = 8  # candidates that may wait for a builder, each
_IN_FLIGHT = 40  # candidates of one device class under way at once
_ATTEMPTS = 2  # a candidate that loses this many builders is blamed
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
    how long a run without a time budget waits for a device when all of a class are lost. ``orders``: the file with what
    people want of the devices (:mod:`fleet_tune.records.orders`). ``check_every_secs``: how often a device that works
    is asked for its probe."""

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
    orders: Path | None = None
    check_every_secs: float = health.PROBE_EVERY_SECS


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
        self._bandit = preset(plan.method).make_task_bandit(plan.seed)
        self._tasks = {task.id: TaskTrials(task, plan.floor_secs[task.id], plan.task_limit) for task in plan.tasks}
        device_classes = {name: device_class for name, (device_class, _) in devices.items()}
        budget = plan.time_budget_secs
        kept = 0.0 if budget is None else reserve_secs(budget, len(plan.tasks))
        self._board = Board(self._tasks, device_classes.values(), None if budget is None else budget - kept)
        orders = None if plan.orders is None else FleetOrders(plan.orders)
        self._fleet = FleetHealth(device_classes, plan.run_id, self._keep_events, orders)
        targets = {task.device_class.name: task.device_class.target for task in plan.tasks}
        # A class without a task has no work: its devices are left alone.
        self._handles = {
            name: (its_class, RemoteDevice(actor, targets[its_class], recorder))
            for name, (its_class, actor) in devices.items()
            if its_class in targets
        }
        self._dispatch = Dispatch(
            self._board,
            self._fleet,
            self._handles,
            plan.rule,
            plan.device_patience_secs,
            self._record_unmeasured,
            plan.check_every_secs,
        )
        self._outcomes: Counter[Outcome] = Counter()
        self._new_trials = 0
        self._cursor = 0
        self._replayed = False
        self._recent: deque[float] = deque()
        self._phase = "starting"
        self._stopped = False

    # What others ask -------------------------------------------------------------------------------------------------

    async def progress(self) -> Progress:
        """A snapshot for views and metrics."""
        now = time.monotonic()
        while self._recent and self._recent[0] < now - _RATE_WINDOW_SECS:
            self._recent.popleft()
        window = min(_RATE_WINDOW_SECS, max(self._board.elapsed_secs, 1e-9))
        return Progress(
            phase=self._phase,
            elapsed_secs=self._board.elapsed_secs,
            time_budget_secs=self._plan.time_budget_secs,
            trial_limit=self._limit(),
            trials=self._trials(),
            new_trials=self._new_trials,
            outcomes={outcome.value: count for outcome, count in self._outcomes.items()},
            records_per_sec=len(self._recent) / window,
            queues={
                "build": self._board.build_queue.qsize(),
                "building": self._board.building,
                "measure": sum(map(len, self._board.built.values())),
            },
            devices=self._fleet.words,
            device_changes=self._fleet.changes,
            vitals=dict(self._dispatch.vitals),
            tasks=tuple(self._task_progress(state) for state in self._tasks.values()),
        )

    async def stop(self) -> None:
        """Stop granting; ``run`` returns when the measurement under way is stored, without shoot-outs."""
        self._stopped = True
        self._board.stopping.set()
        await self._board.notify()

    async def run(self) -> None:
        """Tune. Raises what ended it early: a recorder that is lost or cannot store."""
        self._board.start()
        workers = [asyncio.create_task(self._follow())]
        try:
            self._fleet.restore(
                await ask(self._recorder.device_states.remote(), 30.0, "recorder: read the states of devices")
            )
            workers += [
                asyncio.create_task(self._fleet.write()),
                asyncio.create_task(self._fleet.obey(self._board.notify)),
            ]
            await self._first_failure_or(self._board.until(lambda: self._replayed), workers)
            background = list(workers)
            self._phase = "tuning"
            grants = [asyncio.create_task(self._grant(name)) for name in self._board.built]
            workers += [asyncio.create_task(self._build(builder)) for builder in self._builders]
            measuring = [asyncio.create_task(self._dispatch.serve(name)) for name in self._handles]
            workers += [*grants, *measuring]
            done = asyncio.gather(*grants)
            await self._first_failure_or(done, workers)
            # Nothing more is granted; what is measured now is stored, what is only built is dropped.
            self._board.stopping.set()
            await self._board.notify()
            self._phase = "finishing"
            await self._first_failure_or(asyncio.gather(*measuring), background)
            await self._catch_up()
            await self._first_failure_or(self._shoot_outs(), background)
            await self._first_failure_or(self._fleet.flush(), background)
            await self._catch_up()
        finally:
            self._phase = "finished"
            for worker in workers:
                worker.cancel()

    # The stages ------------------------------------------------------------------------------------------------------

    async def _grant(self, device_class: str) -> None:
        """Grant trials to tasks of one device class until nothing more is to be tuned, then wait for what is out."""
        states = [state for state in self._tasks.values() if state.task.device_class.name == device_class]
        while not self._board.over():
            if not any(state.room for state in states) or not self._room():
                if self._in_flight(states) == 0:
                    return
                await self._board.wait_for_change()
                continue
            queued = self._board.build_queue.qsize() + GRANT > _WAITING_PER_BUILDER * len(self._builders)
            if queued or self._in_flight(states) + GRANT > _IN_FLIGHT:
                await self._board.wait_for_change()
                continue
            choice = self._bandit.choose([state.state() for state in states])
            if choice is None:
                await self._board.wait_for_change()
                continue
            state = states[choice.index]
            await self._propose(state, min(state.room, self._room()))

    async def _propose(self, state: TaskTrials, count: int) -> None:
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
            state.finish(f"converged: {gains}, and so will the next one ({offer.predicted_gain:.2%} expected)")
            return
        if not offer.candidates:
            state.finish_if_exhausted()
            return
        if task.id not in self._board.oracles:
            self._board.oracles[task.id] = asyncio.get_running_loop().create_future()
            self._board.build_queue.put_nowait(Oracle(task))
        for candidate in offer.candidates:
            # A restarted searcher knows what is recorded, not what is under way.
            if candidate.id not in state.under_way:
                state.under_way.add(candidate.id)
                self._board.build_queue.put_nowait(Trial(candidate))
        state.finish_if_exhausted()

    async def _build(self, builder: Any) -> None:
        """Feed one builder."""
        while True:
            item = await self._board.build_queue.get()
            await self._board.notify()
            if self._board.over():
                if isinstance(item, Oracle):
                    self._board.oracles[item.task.id].set_result(None)
                continue
            if isinstance(item, Oracle):
                task, candidate = item.task, None
            else:
                task, candidate = self._tasks[item.candidate.task_id].task, item.candidate
            request = BuildRequest(task, candidate, self._plan.build_timeout_secs)
            self._board.building += 1
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
                    self._board.build_queue.put_nowait(item)
                    await asyncio.sleep(_RETRY_SECS)
                    continue
                failure = BuildFailure(task.id, candidate, "", Measurement(Outcome.BUILD_ERROR, detail=str(error)))
            finally:
                self._board.building -= 1
            if isinstance(item, Oracle):
                self._settle_oracle(task, artifact_ref, failure)
            elif failure is None:
                item.artifact = artifact_ref
                self._tasks[task.id].artifacts[item.candidate.id] = artifact_ref
                self._board.built[task.device_class.name].append(item)
            else:
                await self._record_failure(item, failure.trace, failure.measurement)
            await self._board.notify()

    def _settle_oracle(self, task: Task, artifact: Any, failure: BuildFailure | None) -> None:
        if failure is not None:
            reason = f"the unscheduled program does not build: {failure.measurement.detail}"
            _LOG.error("%s: %s", task.workload.name, reason)
            self._tasks[task.id].finish(reason)
        self._board.oracles[task.id].set_result(None if failure else artifact)

    async def _shoot_outs(self) -> None:
        """Decide between the best few of each task, in what is left of the time budget."""
        budget = self._plan.time_budget_secs

        def over() -> bool:
            return self._stopped or (budget is not None and self._board.elapsed_secs >= budget)

        final = FinalRound(
            self._fleet, self._builders, self._handles, self._plan.rule, self._plan.build_timeout_secs, over
        )
        await final.hold(list(self._tasks.values()), self._board.oracles)

    async def _keep_events(self, events: Sequence[DeviceEvent]) -> None:
        await ask(self._recorder.append_device_events.remote(events), 30.0, "recorder: store changes of devices")

    async def _record_unmeasured(self, trial: Trial, measurement: Measurement) -> None:
        await self._record_failure(trial, "", measurement)

    async def _record_failure(self, trial: Trial, trace: str, measurement: Measurement) -> None:
        record = make_record(trial.candidate, trace, measurement, self._plan.run_id, "")
        await ask(self._recorder.append.remote([record]), 30.0, "recorder: store a failure")

    # Records ---------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            wait_secs = _FOLLOW_SECS if self._replayed else 0.0
            records = await ask(self._recorder.follow.remote(self._cursor, wait_secs), 30.0, "follow the records")
            if not records and not self._replayed:
                self._replayed = True
                self._recent.clear()
            self._absorb(records)
            await self._board.notify()

    async def _catch_up(self) -> None:
        while records := await ask(self._recorder.follow.remote(self._cursor, 0.0), 30.0, "follow the records"):
            self._absorb(records)

    def _absorb(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.seq <= self._cursor:
                continue  # read twice: by the follower and by the final catch-up
            self._cursor = record.seq
            if record.revision == 0:
                self._outcomes[record.measurement.outcome] += 1
                if record.run_id == self._plan.run_id:
                    self._new_trials += 1
                    self._recent.append(time.monotonic())
            state = self._tasks.get(record.task_id)
            if state is None:
                continue
            if record.run_id == self._plan.run_id:
                state.under_way.discard(record.candidate.id)
            state.learn(record)
            state.finish_if_exhausted()

    # State -----------------------------------------------------------------------------------------------------------

    def _task_progress(self, state: TaskTrials) -> TaskProgress:
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

    def _in_flight(self, states: Sequence[TaskTrials]) -> int:
        return sum(state.in_flight for state in states)

    def _room(self) -> int:
        """Trials that may still be granted."""
        if self._plan.trial_limit is None:
            return GRANT
        return max(0, self._plan.trial_limit - self._trials() - self._in_flight(list(self._tasks.values())))

    def _limit(self) -> int | None:
        """The trials at which the run ends, as views show it."""
        if self._plan.task_limit is None:
            return self._plan.trial_limit
        return sum(max(state.trials, self._plan.task_limit) for state in self._tasks.values())

    async def _first_failure_or(self, done: Any, workers: Sequence[asyncio.Task[None]]) -> None:
        """Wait for ``done``; a worker that fails meanwhile ends the wait with its error."""
        done = asyncio.ensure_future(done)
        pending = {done, *workers}
        while not done.done():
            finished, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for worker in finished:
                if worker is not done and worker.exception() is not None:
                    _LOG.error("scheduler stage failed: %s", first_line(worker.exception() or RuntimeError()))
                worker.result()
