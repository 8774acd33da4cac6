"""Typed clients of the actors: each owns the deadlines and retries of its calls. They travel as values.

Every call may raise :class:`actors.calls.ActorLostError` (the actor's process is gone; Ray may start it again) and
:class:`actors.calls.ActorTimeoutError` (it did not answer), and what the actor's method raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tenacity import AsyncRetrying, before_sleep_log, retry_if_exception_type, wait_fixed

from actors import waiting
from actors.calls import (
    WINDOW_WAIT_SECS,
    ActorDeadError,
    ActorLostError,
    ActorTimeoutError,
    ask,
    fetch,
    first_line,
    told,
)
from devices.host.quiet import QuietWindow
from devices.protocol import BuildFailure, BuildRequest
from fleet_tune.device_state import DeviceEvent, DeviceState
from fleet_tune.domain import Candidate, Fingerprint, Incumbent, Outcome, Record, StopRule, Task
from fleet_tune.errors import DeviceUnreachableError, RecorderLostError
from fleet_tune.records.codec import readable_records
from fleet_tune.results import DeviceTime, Progress

_LOG = logging.getLogger(__name__)
LOST = (ActorLostError, ActorTimeoutError)
_T = TypeVar("_T")

_START_SECS = 120.0
# The recorder may take this long, and is told to be slow after a part of it.
_STORE_SECS = 600.0
_SLOW_SECS = 5.0
_LOOK_SECS = 1.0
_RETRY_RECORDER_SECS = 0.2
_FETCH_SECS = 30.0
_TELL_SECS = 30.0
_ENDING_SECS = 2.0  # what hangs need not hang for longer
_FOLLOW_SECS = 5.0
GATHER_SECS = 0.05
"""Who follows the recorder lets that much come before it asks again: commits are 10 ms apart, and each answer is a
call."""
_FOLLOW_SPARE_SECS = 55.0
_RETRY_SECS = 1.0
_NEWCOMER_SECS = 5.0
_MISSED_BEATS = 2  # in a row, and the process that owns the device is taken for hanging
# Searchers share their host with builders and devices, and a device that says what it is may be a slow one.
_MISSED_BEATS_OF_OTHERS = 4
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS, _WELL_SECS = 1.0, 60.0, 600.0


class ActorClient:
    """``actor``: the handle of one that gives signs of life."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def beat(self) -> None:
        """See :mod:`actors.heartbeats`."""
        await ask(self._actor.beat.remote(), None, "a sign of life")


class RestartedClient(ActorClient):
    """Of an actor that Ray starts again."""

    def restart(self) -> None:
        """End its process, which hangs or has failed; another one takes its place."""
        _end(self._actor)


class BusyClient(RestartedClient):
    """Of one that does its work in a thread of its own, and gives signs of life beside it."""

    async def beat(self) -> None:
        """See :mod:`actors.heartbeats`."""
        await ask(_beating(self._actor), None, "a sign of life")


class RecorderClient(RestartedClient):
    """See :class:`actors.recorder.Recorder`. It is waited for as long as a disk may take that is busy with other
    things, and as the process takes to start that takes the place of a lost one: every call may be made twice. A run
    without it cannot go on.

    Every call may raise :class:`fleet_tune.errors.RecorderLostError` in place of what calls usually do.
    """

    async def put_tasks(self, tasks: Sequence[Task]) -> None:
        await self._asked(lambda: self._actor.put_tasks.remote(tasks), "store the tasks")

    async def append(self, records: Sequence[Record], epoch: int | None = None) -> list[int]:
        """Make records durable; their sequence numbers. Raises StaleLeaseError."""
        seqs: list[int] = await self._asked(lambda: self._actor.append.remote(records, epoch), "store records")
        return seqs

    def append_and_wait(self, records: Sequence[Record], epoch: int | None = None) -> None:
        """:meth:`append` for an actor without an event loop."""
        self._fetched(lambda: self._actor.append.remote(records, epoch), "store records")

    def probed_and_wait(self, device_id: str, usual_secs: float) -> float:
        """Note what a device's probe usually takes; the seconds at which its speed counts as 1. For an actor without an
        event loop."""
        unit_secs: float = self._fetched(
            lambda: self._actor.probed.remote(device_id, usual_secs), "note a device's probe"
        )
        return unit_secs

    async def append_device_events(self, events: Sequence[DeviceEvent]) -> None:
        """Make changes of devices durable."""
        await self._asked(lambda: self._actor.append_device_events.remote(events), "store changes of devices")

    async def device_states(self) -> dict[str, DeviceState]:
        """The last state of every device that the store knows."""
        states: dict[str, DeviceState] = await self._asked(
            lambda: self._actor.device_states.remote(), "read the states of devices"
        )
        return states

    async def end_leases(self, device_ids: Sequence[str], run_id: str) -> None:
        """See :meth:`actors.recorder.Recorder.end_leases`."""
        await self._asked(lambda: self._actor.end_leases.remote(device_ids, run_id), "end the leases of devices")

    async def follow(self, cursor: int, wait_secs: float, traces: bool = False) -> list[Record]:
        """Committed records with ``seq > cursor``, without their traces if these are not asked for; waits up to
        ``wait_secs`` for the first, then gives none. What cannot be decoded is left out, as the store does."""
        while True:
            bodies: list[tuple[int, bytes]] = await self._asked(
                functools.partial(self._actor.follow.remote, cursor, wait_secs, traces), "follow the records"
            )
            records = readable_records(bodies)
            if records or not bodies:
                return records
            cursor = bodies[-1][0]

    async def stream(self, cursor: int = 0) -> AsyncIterator[list[Record]]:
        """Committed records as they come, in groups; an empty group once all that there were are read, and whenever
        none has come for a while. A recorder that does not answer is asked again, for as long as it takes."""
        wait_secs = 0.0
        while True:
            async for attempt in _patiently():
                with attempt:
                    records = await self.follow(cursor, wait_secs)
            yield records
            if not records:
                wait_secs = _FOLLOW_SECS
                continue
            cursor = records[-1].seq
            if wait_secs:
                await asyncio.sleep(GATHER_SECS)

    async def last_seq(self) -> int:
        seq: int = await self._asked(lambda: self._actor.last_seq.remote(), "say what it has")
        return seq

    async def troubles(self) -> AsyncIterator[tuple[str, bool]]:
        """What is wrong with the recorder, in words, each time that it is slow, and when it no longer is: then True.

        Raises RecorderLostError where it is gone for good, or has not answered for ``_STORE_SECS``."""
        clock = asyncio.get_running_loop().time
        answered_at, slow_secs = clock(), 0.0
        while True:
            await asyncio.sleep(_LOOK_SECS)
            try:
                storing_secs: float = await ask(self._actor.storing_secs.remote(), _SLOW_SECS, "a sign of life")
                answered_at = clock()
            except ActorDeadError as error:
                raise _recorder_lost(first_line(error)) from error
            except LOST:
                storing_secs = clock() - answered_at
            if storing_secs >= _STORE_SECS:
                raise _recorder_lost(f"it has stored nothing for {storing_secs:.0f} s")
            if slow_secs and storing_secs < _SLOW_SECS:
                yield f"the recorder stores again, after {slow_secs:.0f} s", True
                slow_secs = 0.0
            elif storing_secs >= _SLOW_SECS:
                if not slow_secs:
                    yield "the recorder is slow: the run waits for it", False
                slow_secs = storing_secs

    async def close(self) -> None:
        """Close the store; what was acknowledged is durable already."""
        await ask(self._actor.close.remote(), 1.0, "close the record store")

    async def _asked(self, call: Callable[[], Any], what: str) -> Any:
        """The answer to ``call``, which is made again when another process has taken the place of a lost one."""
        deadline = time.monotonic() + _STORE_SECS
        while True:
            with _recorder_answers(deadline):
                return await ask(call(), max(0.0, deadline - time.monotonic()), what)
            await asyncio.sleep(_RETRY_RECORDER_SECS)

    def _fetched(self, call: Callable[[], Any], what: str) -> Any:
        """:meth:`_asked` for an actor without an event loop."""
        deadline = time.monotonic() + _STORE_SECS
        while True:
            with _recorder_answers(deadline):
                return fetch(call(), max(0.0, deadline - time.monotonic()), what)
            time.sleep(_RETRY_RECORDER_SECS)


@contextlib.contextmanager
def _recorder_answers(deadline: float) -> Iterator[None]:
    """Lets one loss pass, after which the call is made again, until the deadline. Raises RecorderLostError for those
    that another try does not mend."""
    try:
        yield
    except (ActorDeadError, ActorTimeoutError) as error:
        raise _recorder_lost(first_line(error)) from error
    except ActorLostError as error:
        if time.monotonic() + _RETRY_RECORDER_SECS >= deadline:
            raise _recorder_lost(first_line(error)) from error


def _recorder_lost(detail: str) -> RecorderLostError:
    return RecorderLostError(
        f"the recorder, which stores the records, is lost: {detail}",
        "look at the disk that the output folder is on, and run the same command again: it resumes",
    )


@dataclass(frozen=True)
class Offer:
    """Answer to ``propose``. ``number``: of this offer of its task. ``exhausted``: nothing is left to propose, every
    candidate is measured or under way. ``predicted_gain``: see
    :attr:`policies.search.search.TaskSearch.predicted_gain`."""

    number: int
    candidates: tuple[Candidate, ...]
    exhausted: bool
    predicted_gain: float


class SearcherClient(RestartedClient):
    """See :class:`actors.searcher.Searcher`. ``window``: in which it stands still, None where none is of its host; such
    seconds are none of its silence."""

    def __init__(self, actor: Any, window: QuietWindow | None = None) -> None:
        super().__init__(actor)
        self._window = window
        self._is_lost = False

    async def start(self) -> None:
        """Until it has read the records of earlier runs."""
        await ask(self._actor.start.remote(), _START_SECS, "searcher")

    async def propose(self, task_id: str, count: int, taken: int) -> Offer:
        """Up to ``count`` new candidates of a task; ``taken``: number of its last offer that was received. After a
        loss, the process that takes the place of the lost one is waited for first: that it starts is nobody's fault."""
        if self._is_lost:
            async for attempt in _patiently(_START_SECS, waiting.clock_of(self._window)):
                with attempt:
                    await self._beat()
            self._is_lost = False
        working = ask(self._actor.propose.remote(task_id, count, taken), WINDOW_WAIT_SECS, "propose candidates")
        try:
            clock = waiting.clock_of(self._window)
            return await waiting.watched(working, self._beat, _MISSED_BEATS_OF_OTHERS, "the searcher", clock)
        except LOST:
            self._is_lost = True
            raise

    async def forget(self) -> None:
        """See :meth:`actors.searcher.Searcher.forget`."""
        await ask(self._actor.forget.remote(), WINDOW_WAIT_SECS, "forget what was proposed")

    def restart(self) -> None:
        self._is_lost = True
        super().restart()

    async def _beat(self) -> None:
        await ask(self._actor.beat.remote(), waiting.BEAT_SECS, "a sign of life")


class LearnerClient(RestartedClient):
    """See :class:`actors.learner.Learner`. ``window``: as of :class:`SearcherClient`."""

    def __init__(self, actor: Any, window: QuietWindow | None = None) -> None:
        super().__init__(actor)
        self._window = window

    def start(self) -> None:
        """Begin to follow the records and to train; not waited for."""
        self._actor.start.remote()

    async def failures(self) -> AsyncIterator[str]:
        """How the learner failed, each time that it does. Its process is then ended, and another one begins anew with
        the records, a little later each time."""
        clock = asyncio.get_running_loop().time
        pause_secs, last_at = 0.0, clock()
        while True:
            try:
                detail = await self._asked(self._actor.failure.remote(_FOLLOW_SECS), "learner")
                if not detail:
                    continue
                _end(self._actor)
            except ActorLostError as error:  # Ray starts it again
                detail = first_line(error)
            except ActorTimeoutError as error:
                detail = first_line(error)
                _end(self._actor)
            except Exception as error:
                detail = told(error)
                _end(self._actor)
            pause_secs = 0.0 if clock() - last_at > _WELL_SECS else pause_secs
            pause_secs = min(_LONGEST_PAUSE_SECS, max(_FIRST_PAUSE_SECS, 2 * pause_secs))
            last_at = clock()
            yield detail
            await asyncio.sleep(pause_secs)
            with contextlib.suppress(*LOST):  # that another process takes its place is no failure
                async for attempt in _patiently(_START_SECS, waiting.clock_of(self._window)):
                    with attempt:
                        await ask(self._actor.failure.remote(0.0), waiting.BEAT_SECS, "a sign of life")

    async def stream(self) -> AsyncIterator[dict[str, bytes]]:
        """New models as they are published: their bytes by the id of a task or the name of a device class. A learner
        that does not answer is asked again, for as long as it takes."""
        versions: dict[str, int] = {}
        while True:
            async for attempt in _patiently():
                with attempt:
                    fresh = await self._asked(self._actor.follow.remote(versions, _FOLLOW_SECS), "follow the models")
                    models = {
                        key: await ask(weights, _FETCH_SECS, "fetch a model") for key, (_, [weights]) in fresh.items()
                    }
            versions |= {key: version for key, (version, _) in fresh.items()}
            if models:
                yield models

    async def _asked(self, reference: Any, what: str) -> Any:
        """What is answered after ``_FOLLOW_SECS`` at the latest, and counts as lost well after that."""
        return await waiting.asked_by(
            waiting.clock_of(self._window), reference, _FOLLOW_SECS + _FOLLOW_SPARE_SECS, what
        )


class BuilderClient(BusyClient):
    """See :class:`actors.builder.Builder`."""

    def warm_up(self) -> None:
        """Start its worker process; not waited for."""
        self._actor.warm_up.remote()

    async def build(self, request: BuildRequest) -> tuple[BuildFailure | None, Any]:
        """The failure, or None and the object reference of the artifact, which is not fetched."""
        failure_reference, artifact = self._actor.build.options(num_returns=2).remote(request)
        deadline_secs = request.timeout_secs + WINDOW_WAIT_SECS
        failure: BuildFailure | None = await ask(failure_reference, deadline_secs, "build")
        return failure, artifact


@dataclass(frozen=True)
class BatchReport:
    """What became of a batch. ``outcomes`` by candidate id: all of them are stored but DEVICE_LOST, which only the last
    one can be. Candidates without an outcome were not tried. ``detail``: how the device was lost, empty if it was not.
    ``vitals``: what the device told of its hardware (see :mod:`devices.host.vitals`), and its ``speed`` and
    ``usual_speed`` (see :mod:`policies.measuring.speed`). ``waits``: seconds that were no measuring, by what they were.
    """

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    detail: str = ""
    vitals: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[DeviceTime, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskPlaces:
    """What a device needs of a task. ``oracle``, ``rival``: the object references of its unscheduled program and of its
    incumbent's artifact, in lists, so that each is fetched only where it is lacking; no rival where it is not built."""

    oracle: list[Any]
    incumbent: Incumbent = field(default_factory=Incumbent)
    rival: list[Any] = field(default_factory=list)


class DeviceHandle(Protocol):
    """One device, seen from its lane: :class:`DeviceClient`, or a stand-in of a test."""

    async def check(self) -> float:
        """Seconds of one run of the probe, connecting first where that is needed.

        Raises DeviceUnreachableError, ProbeError.
        """

    async def measure(
        self,
        artifacts: Sequence[Any],
        tasks: Mapping[str, TaskPlaces],
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        """Measure and store a batch; see :meth:`actors.device.DeviceActor.measure`. Raises StaleLeaseError."""

    async def shoot_out(
        self,
        finalists: Sequence[tuple[Any, int]],
        task: TaskPlaces,
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        """Let the finalists of a task meet; see :meth:`actors.device.DeviceActor.shoot_out`. Raises
        StaleLeaseError."""

    def restart(self) -> None:
        """End the process that owns the device, which hangs; another one takes its place."""


class DeviceClient(BusyClient):
    """See :class:`actors.device.DeviceActor`. ``target``: that of the device's class, empty while that is not known.

    Ray may start the actor again at any time. A process that owns a device and gives no sign of life is not waited for
    to the deadline.
    """

    def __init__(self, actor: Any, target: str, recorder: RecorderClient) -> None:
        super().__init__(actor)
        self._target = target
        self._recorder = recorder

    async def joined(self, tell: Callable[[str], None]) -> Fingerprint:
        """What the device says of itself, once it answers; not before, however long that takes. Meanwhile ``tell`` is
        called with what keeps it away, each time that this changes. Raises UserError for what is wrong with it."""
        last = ""
        while True:
            try:
                await ask(self._actor.ping.remote(), _START_SECS, "a newcomer")
                return await fingerprint_of(self._actor, "newcomer")
            except (DeviceUnreachableError, *LOST) as error:
                reason = first_line(error)
            if reason != last:
                tell(reason)
                last = reason
            await asyncio.sleep(_NEWCOMER_SECS)

    def of_class(self, target: str) -> DeviceClient:
        """The same device, of a class with this target."""
        return DeviceClient(self._actor, target, self._recorder)

    async def check(self) -> float:
        secs: float = await ask(self._actor.check.remote(self._target), WINDOW_WAIT_SECS, "run the probe")
        return secs

    async def measure(
        self,
        artifacts: Sequence[Any],
        tasks: Mapping[str, TaskPlaces],
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        measuring = self._actor.measure.remote(artifacts, tasks, rule, self._recorder, epoch)
        return await self._alive(ask(measuring, deadline_secs, "measure"))

    async def shoot_out(
        self,
        finalists: Sequence[tuple[Any, int]],
        task: TaskPlaces,
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        # In lists, so that Ray does not fetch them on the way.
        entered = [([artifact], revision) for artifact, revision in finalists]
        running = self._actor.shoot_out.remote(entered, task, rule, self._recorder, epoch)
        return await self._alive(ask(running, deadline_secs, "hold a shoot-out"))

    async def _alive(self, working: Awaitable[BatchReport]) -> BatchReport:
        """The report of what the device does now; see :func:`actors.waiting.watched`."""
        return await waiting.watched(
            working, lambda: _device_beat(self._actor), _MISSED_BEATS, "the process that owns the device"
        )


async def _device_beat(actor: Any) -> None:
    """A sign of life of the process that owns a device, also while it measures."""
    await ask(_beating(actor), waiting.BEAT_SECS, "a sign of life")


def _beating(actor: Any) -> Any:
    """A sign of life that is asked for beside an actor's work."""
    return actor.beat.options(concurrency_group="beat").remote()


def _end(actor: Any) -> None:
    """End the actor's process; Ray starts another one where the actor may restart."""
    import ray

    with contextlib.suppress(Exception):  # it may be gone by itself meanwhile
        ray.kill(actor, no_restart=False)


async def fingerprint_of(actor: Any, device_id: str) -> Fingerprint:
    """What a device's actor says of it: a slow one takes minutes. Raises DeviceUnreachableError, and UserError for what
    is wrong with it."""
    return await waiting.watched(
        ask(actor.fingerprint.remote(), WINDOW_WAIT_SECS, f"device {device_id}"),
        lambda: _device_beat(actor),
        _MISSED_BEATS_OF_OTHERS,
        "the process that owns the device",
    )


class SchedulerClient(ActorClient):
    """See :class:`actors.scheduler.Scheduler`."""

    async def started(self) -> None:
        """Until its process answers."""
        await ask(self._actor.progress.remote(), _START_SECS, "scheduler")

    async def described(self, task_id: str, rules: Sequence[str], enough: int = 0) -> None:
        """A task of the plan has sketches, made by ``rules``. ``enough``: as :attr:`SearchTask.enough`."""
        await ask(self._actor.described.remote(task_id, rules, enough), _TELL_SECS, "a task that is described")

    async def undescribable(self, task_id: str) -> None:
        """A task of the plan has no sketch."""
        await ask(self._actor.undescribable.remote(task_id), _TELL_SECS, "a task that is described")

    async def noticed(self, text: str, well: bool = False) -> None:
        """People are to be told this."""
        await ask(self._actor.noticed.remote(text, well), _TELL_SECS, "tell people")

    async def ending(self, who: int | str) -> None:
        """The process of a builder, by its number, or of a device, by its id, is ended now, because it hangs."""
        await ask(self._actor.ending.remote(who), _ENDING_SECS, "note who is ended")

    def end(self) -> None:
        """End its process for good."""
        import ray

        with contextlib.suppress(Exception):  # it may be gone by itself meanwhile
            ray.kill(self._actor, no_restart=True)

    async def progress(self) -> Progress:
        progress: Progress = await ask(self._actor.progress.remote(), 10.0, "progress")
        return progress

    async def run(self) -> None:
        """Tune. No deadline of its own: it lasts as long as the budget, and :meth:`stop` bounds its end."""
        await ask(self._actor.run.remote(), None, "the scheduler")

    async def stop(self) -> None:
        """Stop granting."""
        await ask(self._actor.stop.remote(), 1.0, "stop")


def _patiently(most_secs: float = math.inf, clock: Callable[[], float] = time.monotonic) -> AsyncRetrying:
    """Again and again, a second after each loss; for ``most_secs`` of the clock, then with the error of the last."""
    began = clock()
    return AsyncRetrying(
        stop=lambda _: clock() - began >= most_secs,
        reraise=True,
        retry=retry_if_exception_type((*LOST, RecorderLostError)),
        wait=wait_fixed(_RETRY_SECS),
        before_sleep=before_sleep_log(_LOG, logging.WARNING),
    )
