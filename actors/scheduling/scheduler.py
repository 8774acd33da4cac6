"""The scheduler: carries out what the run's state wants (:mod:`policies.runs`), and tells it what has happened.

It decides nothing. The state is rebuilt from the records alone (resume is the same path as start, and so is taking the
place of a scheduler that was lost); what it holds beside them is only what is under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.clients.artifacts import Artifacts
from actors.clients.calls import LOST, ActorLostError, error_line, first_line, relax_garbage_collection
from actors.clients.handles import ActorHandles
from actors.clients.learner import LearnerClient
from actors.clients.recorder import GATHER_SECS, RecorderClient
from actors.processes.recorder import make_record
from actors.scheduling.builder_pool import BuilderPool
from actors.scheduling.device_lane import DeviceLane
from actors.scheduling.record_batcher import RecordBatcher
from fleet_tune.base.device_state import Admin, DeviceState
from fleet_tune.base.errors import FleetOrdersError
from fleet_tune.base.records.orders import FleetOrders
from fleet_tune.base.records.stores.codec import encode_record
from fleet_tune.base.results import Progress
from policies.runs import commands as to_do
from policies.runs import events as ev
from policies.runs.plan import RunPlan
from policies.runs.state import Phase, RunState
from policies.search.methods import Method

_LOG = logging.getLogger(__name__)
_FOLLOW_SECS = 2.0
_POLL_SECS = 1.0
_LEAVE_SECS = 5.0  # until the state has heard that a device leaves
_ALONE = (ev.DeviceAnswered, ev.DeviceLeft)
_LEVELS = {"info": logging.INFO, "notice": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True)
class SchedulerPlan:
    """``run``: what to tune, on what, within which limits. ``method``: allocates the trials to the tasks. ``orders``:
    the file with what people want of the devices (:mod:`fleet_tune.base.records.orders`). ``notices``: what people are
    told first, of a run that begins."""

    run: RunPlan
    method: Method
    seed: int
    orders: Path | None = None
    notices: tuple[str, ...] = ()


class Scheduler:
    """Async actor: ``run`` ends when a limit is reached, every task is finished, or the run was told to stop."""

    def __init__(
        self,
        plan: SchedulerPlan,
        recorder: RecorderClient,
        handles: ActorHandles,
        learner: LearnerClient | None = None,
    ) -> None:
        """``handles``: of the plan's tasks and builders, and of its devices whose class has tasks. ``learner``: None
        where nothing is learnt."""
        relax_garbage_collection()
        self._plan = plan
        self._recorder = recorder
        self._handles = handles
        self._learner = learner
        self._state = RunState(plan.run, plan.method.make_task_bandit(plan.seed))
        self._artifacts = Artifacts()
        self._storing = RecordBatcher(recorder, self._kept)
        self._pool = BuilderPool(handles.builders, self._artifacts)
        known = [device_id for device_id, device_class in plan.run.devices.items() if device_class]
        self._lanes = {device_id: self._lane(device_id) for device_id in known if device_id in handles.devices}
        # In the order in which they leave; set when the state knows that they are gone.
        self._leaving: deque[asyncio.Event] = deque()
        self._orders = None if plan.orders is None else FleetOrders(plan.orders)
        self._events: asyncio.Queue[ev.Event] = asyncio.Queue()
        self._next: ev.Event | None = None  # out of the queue, and not handled yet
        self._took_over = plan.run.before.secs > 0
        for text in () if self._took_over else plan.notices:
            self._events.put_nowait(ev.NoticePosted(text))
        self._cursor = 0
        self._read = asyncio.Condition()  # notified when the cursor has moved
        self._began: float | None = None

    # What others ask -------------------------------------------------------------------------------------------------

    async def progress(self) -> Progress:
        """A snapshot for views and metrics."""
        return self._state.progress(self._now())

    async def tell(self, event: ev.Event, handles: ActorHandles | None = None) -> bool:
        """Hand in an event of the driver's, with the ``handles`` of actors that it names.

        Returns false for a class that is added when the tuning is over: then it is not part of the run. For a device
        that leaves, returns only when the state has heard of it: its process may then be ended without blame.
        """
        if handles is not None:
            self._handles.add(handles)
        match event:
            case ev.ClassAdded() if self._state.phase > Phase.TUNING:
                return False
            case ev.DeviceAdded():
                self._events.put_nowait(await self._with_state(event))
            case ev.DeviceLeft():
                heard = asyncio.Event()
                self._leaving.append(heard)
                self._events.put_nowait(event)
                with contextlib.suppress(TimeoutError):  # a run that is over hears no more
                    await asyncio.wait_for(heard.wait(), _LEAVE_SECS)
            case _:
                self._events.put_nowait(event)
        return True

    async def _with_state(self, event: ev.DeviceAdded) -> ev.DeviceAdded:
        """The event with the last stored state of the device, and with what people want of it."""
        states = await self._recorder.device_states()
        latest = {} if self._orders is None else await asyncio.to_thread(self._orders.latest)
        order = latest.get(event.device_id)
        admin, reason = (Admin.ACTIVE, "") if order is None else (order.admin, order.reason)
        state = states.get(event.device_id, DeviceState())
        return dataclasses.replace(event, state=state, admin=admin, reason=reason)

    async def beat(self) -> None:
        """A sign of life."""

    async def run(self) -> None:
        """Tune. Raises what ended it early: a recorder that is lost or cannot store, devices that are all lost."""
        self._began = asyncio.get_running_loop().time() - self._plan.run.before.secs
        if self._took_over:
            await self._end_what_was_begun()
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

    async def _end_what_was_begun(self) -> None:
        """Of what the scheduler before this one has begun, nothing is waited for, and nothing that is not durable by
        now counts: it would come on top of what is granted anew."""
        for searcher in {id(each): each for each in self._handles.searchers.values()}.values():
            with contextlib.suppress(*LOST):  # the process that takes its place reads the records
                await searcher.forget()
        await self._recorder.end_leases(tuple(self._plan.run.devices), self._plan.run.run_id)

    @property
    def _background(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        return self._follow, self._storing.run, self._obey, self._watch_recorder, self._watch_learner

    # Commands --------------------------------------------------------------------------------------------------------

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        """Until the run is finished. Raises what its state ends it with."""
        working: set[asyncio.Task[None]] = set()
        while True:
            events = await self._next_events()
            if isinstance(events[0], ev.DeviceAnswered) and events[0].device_id not in self._lanes:
                self._lanes[events[0].device_id] = self._lane(events[0].device_id)
            for command in self._state.handle_all(events, self._now()):
                match command:
                    case to_do.Finish():
                        # A check of a device may still be under way: nobody waits for it.
                        for task in working:
                            task.cancel()
                        return
                    case to_do.Abort(error):
                        raise error
                    case to_do.RestartDevice(device_id):
                        self._lanes[device_id].restart()
                    case to_do.RestartSearcher(task_id):
                        self._handles.searchers[task_id].restart()
                    case to_do.Log(level, text):
                        _LOG.log(_LEVELS[level], "%s", text)
                    case to_do.DropArtifacts(candidate_ids):
                        self._artifacts.forget(candidate_ids)
                    case to_do.StoreDeviceEvents(changes):
                        self._storing.keep(changes)
                    case _:
                        task = group.create_task(self._tell(self._begun(command), self._lane_of(command)))
                        working.add(task)
                        task.add_done_callback(working.discard)
            if isinstance(events[0], ev.DeviceLeft):
                self._lanes.pop(events[0].device_id, None)
                self._leaving.popleft().set()

    async def _next_events(self) -> list[ev.Event]:
        """Those that are there by the time that one is, in their order: the busier a run is, the more are looked at
        together. One with which a lane comes or goes is alone."""
        if self._next is None:
            wake_secs = self._state.wake_secs
            try:
                async with asyncio.timeout(None if wake_secs is None else max(0.0, wake_secs - self._now())):
                    self._next = await self._events.get()
            except TimeoutError:
                return [ev.Tick()]
        events: list[ev.Event] = [self._next]
        self._next = None
        while not isinstance(events[0], _ALONE) and not self._events.empty():
            event = self._events.get_nowait()
            if isinstance(event, _ALONE):
                self._next = event
                break
            events.append(event)
        return events

    def _begun(self, command: to_do.Command) -> Awaitable[ev.Event | None]:
        """What takes its time. What it needs is taken now: a later command may let go of it."""
        match command:
            case to_do.Propose():
                return self._propose(command)
            case to_do.Build():
                return self._pool.build(command)
            case to_do.ProbeDevice(device_id):
                return self._lanes[device_id].check()
            case to_do.Measure(device_id):
                return self._lanes[device_id].measure(command)
            case to_do.ShootOut(device_id):
                return self._lanes[device_id].shoot_out(command)
            case to_do.CatchUpRecords():
                return self._catch_up()
            case to_do.RecordFailure():
                return self._record(command)
            case _:
                raise AssertionError(f"nobody carries out {command}")

    def _lane_of(self, command: to_do.Command) -> DeviceLane | None:
        """Whose work the command is; None for no device's."""
        match command:
            case to_do.ProbeDevice(device_id) | to_do.Measure(device_id) | to_do.ShootOut(device_id):
                return self._lanes[device_id]
            case _:
                return None

    async def _tell(self, work: Awaitable[ev.Event | None], lane: DeviceLane | None) -> None:
        """Hand in the event with which the work ends; not of a device that has left meanwhile."""
        event = await work
        if event is not None and (lane is None or self._lanes.get(lane.device_id) is lane):
            self._events.put_nowait(event)

    async def _record(self, command: to_do.RecordFailure) -> None:
        """Store a trial that nobody measured; it comes back as a committed record."""
        record = make_record(command.candidate, command.trace, command.measurement, self._plan.run.run_id, "")
        await asyncio.wait([self._storing.store([encode_record(record)])])

    async def _catch_up(self) -> ev.RecordsCaughtUp:
        await self._storing.all_stored()
        seq = await self._recorder.last_seq()
        async with self._read:
            await self._read.wait_for(lambda: self._cursor >= seq)
        return ev.RecordsCaughtUp()

    async def _propose(self, command: to_do.Propose) -> ev.Proposed | ev.ProposalLost:
        task_id = command.task_id
        try:
            offer = await self._handles.searchers[task_id].propose(task_id, command.count, command.taken)
        except ActorLostError as error:
            return ev.ProposalLost(task_id, first_line(error))
        except Exception as error:  # whatever it is, it is the end of this task and not of the run
            return ev.ProposalLost(task_id, error_line(error), hangs=True)
        return ev.Proposed(task_id, offer.number, offer.candidates, offer.exhausted, offer.predicted_gain)

    # In the background -----------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Hand in the records, first those of earlier runs."""
        wait_secs = 0.0
        while True:
            records = await self._recorder.follow(self._cursor, wait_secs)
            if records:
                self._events.put_nowait(ev.RecordsCommitted(tuple(records)))
                async with self._read:
                    self._cursor = records[-1].seq
                    self._read.notify_all()
                if wait_secs:
                    await asyncio.sleep(GATHER_SECS)
            elif wait_secs == 0.0:
                self._events.put_nowait(ev.RecordsCaughtUp())
                wait_secs = _FOLLOW_SECS

    def _kept(self, groups: int) -> None:
        self._events.put_nowait(ev.DeviceEventsStored(groups))

    async def _watch_recorder(self) -> None:
        """Tell when the recorder is slow. Raises RecorderLostError where it is lost."""
        async for text, well in self._recorder.troubles():
            self._events.put_nowait(ev.NoticePosted(text, well))

    async def _watch_learner(self) -> None:
        """Tell when the learner fails; meanwhile the search has the models that there are."""
        if self._learner is None:
            return
        async for detail in self._learner.failures():
            self._events.put_nowait(ev.NoticePosted(f"the learner failed and begins anew: {detail}"))

    def _lane(self, device_id: str) -> DeviceLane:
        def tell(behind: str) -> None:
            self._events.put_nowait(ev.DeviceInUse(device_id, behind))

        return DeviceLane(
            device_id, self._handles.devices[device_id], self._artifacts, self._plan.run.rule, self._storing, tell
        )

    async def _obey(self) -> None:
        """Hand in what the devices were like and what people want of them, then look for orders every second."""
        latest = {} if self._orders is None else await asyncio.to_thread(self._orders.latest)
        states = await self._recorder.device_states()
        wanted = {device_id: (order.admin, order.reason) for device_id, order in latest.items()}
        self._events.put_nowait(ev.DevicesRestored(states, wanted, time.time() - self._now()))
        cursor = max((order.seq for order in latest.values()), default=0)
        complained = False
        while self._orders is not None:
            await asyncio.sleep(_POLL_SECS)
            try:
                orders = await asyncio.to_thread(self._orders.since, cursor)
            except FleetOrdersError as error:
                if not complained:
                    _LOG.warning("%s", error)
                complained = True
                continue
            for order in orders:
                cursor = order.seq
                self._events.put_nowait(ev.AdminRequested(order.device_id, order.admin, order.reason))

    def _now(self) -> float:
        """Seconds since the run began; before this process has, those by then."""
        if self._began is None:
            return self._plan.run.before.secs
        return asyncio.get_running_loop().time() - self._began


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first, without the grouping: it goes to another process."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
