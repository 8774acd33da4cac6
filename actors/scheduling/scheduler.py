"""The scheduler: carries out the commands of the run's state (:mod:`policies.runs`), and hands in its events.

It makes no decisions. The state is rebuilt from the records alone, so that a resumed run and a scheduler that replaces
a lost one start like any run. Besides the records, the state holds only the work under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from actors.clients.artifacts import Artifacts
from actors.clients.calls import LOST, ActorLostError, error_line, first_line, relax_garbage_collection
from actors.clients.handles import ActorHandles
from actors.clients.learner import LearnerClient
from actors.clients.recorder import RecorderClient
from actors.heartbeat import Heartbeat, heartbeat
from actors.processes.recorder import make_record
from actors.scheduling.builder_pool import BuilderPool
from actors.scheduling.device_executor import DeviceExecutor
from actors.scheduling.followers import OrderFollower, RecordFollower
from actors.scheduling.loop_lag import LoopLag
from actors.scheduling.record_batcher import RecordBatcher
from actors.scheduling.stage_clock import StageClock
from fleet_tune.base.records.stores.codec import encode_record
from fleet_tune.base.results import Progress
from policies.runs import commands as to_do
from policies.runs import events as ev
from policies.runs.phase import Phase
from policies.runs.plan import RunPlan
from policies.runs.state import RunState
from policies.search.methods import Method

_LOG = logging.getLogger(__name__)
_LEAVE_SECS = 5.0
"""Longest wait until the state has handled the event that a device leaves."""
_HANDLED_ALONE = (ev.DeviceAnswered, ev.DeviceLeft)
_LEVELS = {"info": logging.INFO, "notice": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True)
class SchedulerPlan:
    """The plan with which a scheduler starts."""

    run: RunPlan
    method: Method
    """Method of the run, which allocates the trials to the tasks."""
    seed: int
    orders: Path | None = None
    """File of the orders for the devices (:mod:`fleet_tune.base.records.orders`)."""
    notices: tuple[str, ...] = ()
    """Notices of a run that begins."""


class Scheduler:
    """Async actor: ``run`` ends when a limit is reached, every task is finished, or the run was told to stop."""

    def __init__(
        self,
        plan: SchedulerPlan,
        recorder: RecorderClient,
        handles: ActorHandles,
        learner: LearnerClient | None = None,
    ) -> None:
        """``handles``: handles of the searchers of the plan's tasks, of its builders, and of its devices whose class
        has tasks. ``learner``: None if nothing is learnt."""
        relax_garbage_collection()
        self._plan = plan
        self._recorder = recorder
        self._handles = handles
        self._learner = learner
        self._state = RunState(plan.run, plan.method.make_task_bandit(plan.seed))
        self._artifacts = Artifacts()
        self._stages = StageClock()
        self._lag = LoopLag()
        self._batcher = RecordBatcher(
            recorder, lambda groups: self._hand_in(ev.DeviceEventsStored(groups)), self._stages
        )
        self._pool = BuilderPool(handles.builders, self._artifacts)
        known = [device_id for device_id, device_class in plan.run.devices.items() if device_class]
        self._executors = {
            device_id: self._make_executor(device_id) for device_id in known if device_id in handles.devices
        }
        self._leaving: deque[asyncio.Event] = deque()
        """One flag for each device that leaves, in order. It is set when the state has handled the device's event."""
        self._events: asyncio.Queue[ev.Event] = asyncio.Queue()
        self._next: ev.Event | None = None
        """An event that was taken out of the queue and is not handled yet."""
        self._records = RecordFollower(recorder, self._hand_in)
        self._orders = OrderFollower(plan.orders, recorder, self._hand_in)
        self._took_over = plan.run.before.secs > 0
        for text in () if self._took_over else plan.notices:
            self._hand_in(ev.NoticePosted(text))
        self._began: float | None = None

    # Calls of the driver ---------------------------------------------------------------------------------------------

    async def progress(self) -> Progress:
        """A snapshot for views and metrics."""
        return replace(
            self._state.progress(self._now()),
            stages=self._stages.progress,
            loop_lag_secs=self._lag.longest_secs,
            model_unix_secs=None if self._learner is None else self._learner.trained_unix_secs,
        )

    async def tell(self, event: ev.Event, handles: ActorHandles | None = None) -> bool:
        """Hand in an event of the driver, with the ``handles`` of the actors that it names.

        Return false for a class that is added when the tuning is over: then it is not part of the run. For a device
        that leaves, return only when the state has handled the event: then the device's process may be ended, and no
        candidate is blamed.
        """
        if handles is not None:
            self._handles.add(handles)
        match event:
            case ev.ClassAdded() if self._state.phase > Phase.TUNING:
                return False
            case ev.DeviceAdded():
                self._hand_in(await self._orders.with_state(event))
            case ev.DeviceLeft():
                heard = asyncio.Event()
                self._leaving.append(heard)
                self._hand_in(event)
                with contextlib.suppress(TimeoutError):  # a run that is over handles no more events
                    await asyncio.wait_for(heard.wait(), _LEAVE_SECS)
            case _:
                self._hand_in(event)
        return True

    async def beat(self) -> Heartbeat:
        """Answer a heartbeat."""
        return heartbeat()

    async def run(self) -> None:
        """Tune. Raise the error that ended the run early: the recorder is lost or cannot store, or all devices are
        lost, for example."""
        self._began = asyncio.get_running_loop().time() - self._plan.run.before.secs
        if self._took_over:
            await self._take_over()
        try:
            async with asyncio.TaskGroup() as group:
                background = [group.create_task(work()) for work in self._background]
                await self._serve(group)
                for task in background:
                    task.cancel()
        except BaseExceptionGroup as failures:
            error = _first(failures)
            _LOG.error("the run ends: %s", first_line(error))
            raise error from None

    async def _take_over(self) -> None:
        """End the proposals and leases of the scheduler that this one replaces. Results that are not durable by now do
        not count, since this scheduler grants their trials again."""
        for searcher in {id(each): each for each in self._handles.searchers.values()}.values():
            with contextlib.suppress(*LOST):  # a process that replaces it reads the records
                await searcher.forget()
        await self._recorder.end_leases(tuple(self._plan.run.devices), self._plan.run.run_id)

    @property
    def _background(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        follow_orders = partial(self._orders.run, self._now)
        watches = self._watch_recorder, self._watch_learner, self._lag.run
        return self._records.run, self._batcher.run, follow_orders, *watches

    # Commands --------------------------------------------------------------------------------------------------------

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        """Handle events and carry out commands until the run is finished. Raise the error with which the state aborts
        the run."""
        working: set[asyncio.Task[None]] = set()
        while True:
            events = await self._next_events()
            if isinstance(events[0], ev.DeviceAnswered) and events[0].device_id not in self._executors:
                self._executors[events[0].device_id] = self._make_executor(events[0].device_id)
            for command in self._state.handle_all(events, self._now()):
                match command:
                    case to_do.Finish():
                        # A probe may still be under way. Nothing waits for it.
                        for task in working:
                            task.cancel()
                        return
                    case to_do.Abort(error):
                        raise error
                    case to_do.RestartDevice(device_id):
                        self._executors[device_id].restart()
                    case to_do.RestartSearcher(task_id):
                        self._handles.searchers[task_id].restart()
                    case to_do.Log(level, text):
                        _LOG.log(_LEVELS[level], "%s", text)
                    case to_do.DropArtifacts(candidate_ids):
                        self._artifacts.forget(candidate_ids)
                        self._stages.forget(candidate_ids)
                    case to_do.StoreDeviceEvents(changes):
                        self._batcher.store_changes(changes)
                    case _:
                        answer, executor = self._begin(command), self._executor_of(command)
                        task = group.create_task(self._hand_in_answer(answer, executor, self._stages.begin(command)))
                        working.add(task)
                        task.add_done_callback(working.discard)
            if isinstance(events[0], ev.DeviceLeft):
                self._executors.pop(events[0].device_id, None)
                self._leaving.popleft().set()

    async def _next_events(self) -> list[ev.Event]:
        """Wait for an event, and return all events that have come by then, in order: the busier a run is, the more
        events are handled together. An event that adds or removes an executor is returned alone."""
        if self._next is None:
            wake_secs = self._state.wake_secs
            try:
                async with asyncio.timeout(None if wake_secs is None else max(0.0, wake_secs - self._now())):
                    self._next = await self._events.get()
            except TimeoutError:
                return [ev.Tick()]
        events: list[ev.Event] = [self._next]
        self._next = None
        while not isinstance(events[0], _HANDLED_ALONE) and not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, _HANDLED_ALONE):
                self._next = event
                break
            events.append(event)
        return events

    def _begin(self, command: to_do.Command) -> Awaitable[ev.Event | None]:
        """Begin a command that takes time. The artifacts that it needs are looked up now, since a later command may
        drop them."""
        match command:
            case to_do.Propose():
                return self._propose(command)
            case to_do.Build():
                return self._pool.build(command)
            case to_do.ProbeDevice(device_id):
                return self._executors[device_id].probe()
            case to_do.Measure(device_id):
                return self._executors[device_id].measure(command)
            case to_do.ShootOut(device_id):
                return self._executors[device_id].shoot_out(command)
            case to_do.CatchUpRecords():
                return self._catch_up()
            case to_do.RecordFailure():
                return self._record(command)
            case _:
                raise AssertionError(f"nobody carries out {command}")

    def _executor_of(self, command: to_do.Command) -> DeviceExecutor | None:
        """The executor of the device that a command works on; None for other commands."""
        match command:
            case to_do.ProbeDevice(device_id) | to_do.Measure(device_id) | to_do.ShootOut(device_id):
                return self._executors[device_id]
            case _:
                return None

    async def _hand_in_answer(
        self,
        answer: Awaitable[ev.Event | None],
        executor: DeviceExecutor | None,
        note_end: Callable[[ev.Event | None], None],
    ) -> None:
        """Hand in the event with which a command ends, unless its device has left meanwhile."""
        event = await answer
        note_end(event)
        if event is not None and (executor is None or self._executors.get(executor.device_id) is executor):
            self._hand_in(event)

    async def _record(self, command: to_do.RecordFailure) -> None:
        """Store the failure of a trial that no device measured. It comes back with the durable records."""
        record = make_record(command.candidate, "", command.measurement, self._plan.run.run_id, "")
        await asyncio.wait([self._batcher.store([encode_record(record)])])

    async def _catch_up(self) -> ev.RecordsCaughtUp:
        await self._batcher.all_stored()
        await self._records.catch_up()
        return ev.RecordsCaughtUp()

    async def _propose(self, command: to_do.Propose) -> ev.Proposed | ev.ProposalLost:
        task_id = command.task_id
        try:
            return await self._handles.searchers[task_id].propose(task_id, command.count, command.last_proposal)
        except ActorLostError as error:
            return ev.ProposalLost(task_id, first_line(error))
        except Exception as error:  # an error of one task does not end the run
            return ev.ProposalLost(task_id, error_line(error), hangs=True)

    # In the background -----------------------------------------------------------------------------------------------

    async def _watch_recorder(self) -> None:
        """Post a notice when the recorder is slow. Raise RecorderLostError if it is lost."""
        async for text, well in self._recorder.troubles():
            self._hand_in(ev.NoticePosted(text, well))

    async def _watch_learner(self) -> None:
        """Post a notice when the learner fails. Meanwhile the search uses the last models."""
        if self._learner is None:
            return
        async for detail in self._learner.failures():
            self._hand_in(ev.NoticePosted(f"the learner failed and begins anew: {detail}"))

    def _make_executor(self, device_id: str) -> DeviceExecutor:
        def report_wait(behind: str) -> None:
            self._hand_in(ev.DeviceInUse(device_id, behind))

        return DeviceExecutor(
            device_id,
            self._handles.devices[device_id],
            self._artifacts,
            self._plan.run.rule,
            self._batcher,
            report_wait,
        )

    def _hand_in(self, event: ev.Event) -> None:
        self._events.put_nowait(event)

    def _now(self) -> float:
        """Seconds since the run began."""
        if self._began is None:
            return self._plan.run.before.secs
        return asyncio.get_running_loop().time() - self._began


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group, without the group, since it is sent to another process."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
