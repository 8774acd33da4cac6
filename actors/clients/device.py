"""The client of a device."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from actors.clients import waiting
from actors.clients.base import BusyClient, request_beat
from actors.clients.calls import LOST, WINDOW_WAIT_SECS, ByValue, ask, first_line
from actors.clients.recorder import RecorderClient
from actors.heartbeat import Heartbeat
from fleet_tune.base.domain import Fingerprint, Incumbent, StopRule
from fleet_tune.base.errors import DeviceUnreachableError, FleetTuneError
from policies.runs.events import BatchMeasured, BatchPostponed, ShootOutMeasured

_START_SECS = 120.0
_ANSWER_POLL_SECS = 5.0
_TURN_SECS = 3.0  # until people are told that a run waits
_FIRST_TURN_SECS = 5.0
TURN_PATIENCE_SECS = 60.0
"""What is to be measured is not kept for longer for a device that other runs use."""
_MISSED_BEATS = 2  # in a row, and the process that owns the device is taken for hanging
_MISSED_BEATS_BEFORE_ANSWER = 8  # as long as a process may take to start: the device or its host may be slow

_T = TypeVar("_T")


class NotOurTurnError(FleetTuneError):
    """The device is used by another run: do something else meanwhile."""


@dataclass(frozen=True)
class TaskArtifacts:
    """The oracle and the incumbent of a task, for a device that measures candidates of it."""

    oracle: list[Any]
    """Reference of the artifact of its unscheduled program, in a list: Ray fetches it only where it is lacking."""
    incumbent: Incumbent = field(default_factory=Incumbent)
    """Best candidate of the task so far."""
    rival: list[Any] = field(default_factory=list)
    """Reference of the incumbent's artifact, in a list; empty where it is not built."""
    limit_secs: float | None = None
    """Longest measurement of a candidate; None for the rule's timeout."""


class DeviceHandle(Protocol):
    """One device, seen from its executor: :class:`DeviceClient`, or a stand-in of a test."""

    async def turn(self, report_wait: Callable[[str], None], most_secs: float = math.inf) -> float:
        """Wait for this run's turn, where other runs use the device too; the seconds that took. Meanwhile
        ``report_wait`` is called with the title of the run that has it, and in the end with an empty one. Raises
        ActorLostError, and NotOurTurnError where it is not this run's after about ``most_secs``."""

    async def probe(self) -> float:
        """Seconds of one run of the probe, connecting first where that is needed.

        Raises DeviceUnreachableError, ProbeError.
        """

    async def measure(
        self,
        artifacts: Sequence[Any],
        tasks: Mapping[str, TaskArtifacts],
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> BatchMeasured:
        """Measure a batch; see :meth:`actors.processes.device.DeviceActor.measure`."""

    async def shoot_out(
        self,
        finalists: Sequence[tuple[Any, int]],
        task: TaskArtifacts,
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> ShootOutMeasured | BatchPostponed:
        """Let the finalists of a task meet; see :meth:`actors.processes.device.DeviceActor.shoot_out`. Raises
        StaleLeaseError."""

    def restart(self) -> None:
        """End the process that owns the device, which hangs; another one takes its place."""


class DeviceClient(BusyClient):
    """See :class:`actors.processes.device.DeviceActor`. ``target``: that of the device's class, empty while that is not
    known. ``power``: the power mode in which the run measures it, empty where nothing tells it. ``in_turns``: other
    runs of the cluster may use it too.

    Ray may start the actor again at any time: what it must know of the run is said in each call. A process that owns a
    device and gives no sign of life is not waited for to the deadline.
    """

    def __init__(
        self, actor: Any, target: str, recorder: RecorderClient, in_turns: bool = False, power: str = ""
    ) -> None:
        super().__init__(actor)
        self._target = target
        self._power = power
        self._recorder = recorder
        self._shared: ByValue[RecorderClient] | None = None
        self._in_turns = in_turns

    async def first_answer(self, report_wait: Callable[[str], None]) -> Fingerprint:
        """Wait for the fingerprint of a device, however long it takes to answer. Meanwhile ``report_wait`` is called
        with the reason why it does not, each time that this changes. Raises UserError for a device that must not be
        used."""
        last = ""
        while True:
            try:
                await self.turn(lambda title: report_wait(turn_of(title)) if title else None)
                await ask(self._actor.ping.remote(), _START_SECS, "a device that joins")
                return await fingerprint_of(self._actor, "that joins")
            except (DeviceUnreachableError, *LOST) as error:
                reason = first_line(error)
            if reason != last:
                report_wait(reason)
                last = reason
            await asyncio.sleep(_ANSWER_POLL_SECS)

    def of_class(self, target: str, power: str) -> DeviceClient:
        """The same device, of a class with this target, which the run measures in this power mode."""
        return DeviceClient(self._actor, target, self._recorder, self._in_turns, power)

    async def turn(self, report_wait: Callable[[str], None], most_secs: float = math.inf) -> float:
        return await turn_of_actor(self._actor, report_wait, most_secs) if self._in_turns else 0.0

    async def probe(self) -> float:
        secs: float = await ask(self._actor.probe.remote(self._target, self._power), WINDOW_WAIT_SECS, "run the probe")
        return secs

    async def measure(
        self,
        artifacts: Sequence[Any],
        tasks: Mapping[str, TaskArtifacts],
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> BatchMeasured:
        measuring = self._actor.measure.remote(artifacts, tasks, rule, self._recording, epoch, self._power)
        return await self._alive(ask(measuring, deadline_secs, "measure"))

    async def shoot_out(
        self,
        finalists: Sequence[tuple[Any, int]],
        task: TaskArtifacts,
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> ShootOutMeasured | BatchPostponed:
        # In lists, so that Ray does not fetch them on the way.
        entered = [([artifact], revision) for artifact, revision in finalists]
        running = self._actor.shoot_out.remote(entered, task, rule, self._recording, epoch, self._power)
        return await self._alive(ask(running, deadline_secs, "hold a shoot-out"))

    @property
    def _recording(self) -> ByValue[RecorderClient]:
        """Packed once for all batches."""
        if self._shared is None:
            self._shared = ByValue(self._recorder)
        return self._shared

    async def _alive(self, working: Awaitable[_T]) -> _T:
        """Return the answer of the device's process while it is alive; see
        :func:`actors.clients.waiting.while_alive`."""
        return await waiting.while_alive(
            working, lambda: _device_beat(self._actor), _MISSED_BEATS, "the process that owns the device"
        )


async def _device_beat(actor: Any) -> Heartbeat:
    """A sign of life of the process that owns a device, also while it measures."""
    answer: Heartbeat = await ask(request_beat(actor), waiting.BEAT_SECS, "a sign of life")
    return answer


async def turn_of_actor(actor: Any, report_wait: Callable[[str], None], most_secs: float = math.inf) -> float:
    """See :meth:`DeviceHandle.turn`."""
    began, told = time.monotonic(), ""
    try:
        while title := await ask(actor.wait_for_turn.remote(_TURN_SECS), _TURN_SECS + WINDOW_WAIT_SECS, "a turn"):
            if title != told:
                report_wait(title)
                told = title
            if time.monotonic() - began >= most_secs:
                raise NotOurTurnError(turn_of(title))
    finally:
        if told:
            report_wait("")
    return time.monotonic() - began


def turn_of(title: str) -> str:
    """Why a run waits for a device, in words."""
    return f"it is the turn of {title}"


async def fingerprint_of(
    actor: Any, device_id: str, report_wait: Callable[[str], None] = lambda _: None
) -> Fingerprint:
    """Ask a device's actor for its fingerprint: a slow one takes minutes. ``report_wait``: is called with what is
    waited for where another process has it, and with an empty text once that is over. Raises DeviceUnreachableError,
    and UserError for a device that must not be used."""
    return await waiting.while_alive(
        ask(actor.fingerprint.remote(), WINDOW_WAIT_SECS, f"device {device_id}"),
        lambda: _device_beat(actor),
        _MISSED_BEATS_BEFORE_ANSWER,
        "the process that owns the device",
        report_wait=lambda text: report_wait(f"device {device_id} {text}" if text else ""),
    )


async def fingerprints(
    actors: Mapping[str, Any], report_wait: Callable[[str], None] = lambda _: None
) -> list[Fingerprint | BaseException]:
    """:func:`fingerprint_of` each of these devices, or what it raises, in order."""
    asking = (fingerprint_of(actor, name, report_wait) for name, actor in actors.items())
    return list(await asyncio.gather(*asking, return_exceptions=True))


async def fingerprints_in_turn(
    actors: Mapping[str, Any], report_wait: Callable[[str], None]
) -> list[Fingerprint | BaseException]:
    """:func:`fingerprints` of devices that other runs use too. Once one of them has said what it is, nobody waits for
    long for those whose turn is another run's: DeviceUnreachableError. ``report_wait``: as of :func:`turn_of_actor`,
    with whole sentences."""
    behind: dict[str, str] = {}

    async def in_turn(name: str, actor: Any) -> Fingerprint:
        def note(title: str) -> None:
            behind.pop(name, None)
            if title:
                behind[name] = title
            report_wait(f"device {name}: {turn_of(title)}" if title else "")

        await turn_of_actor(actor, note)
        return await fingerprint_of(actor, name, report_wait)

    asking = {name: asyncio.ensure_future(in_turn(name, actor)) for name, actor in actors.items()}
    left = set(asking.values())
    while left:
        _, left = await asyncio.wait(left, timeout=_FIRST_TURN_SECS, return_when=asyncio.FIRST_COMPLETED)
        if any(each.done() and not each.cancelled() and each.exception() is None for each in asking.values()):
            for name in [name for name in behind if not asking[name].done()]:
                asking[name].cancel()
    answers = await asyncio.gather(*asking.values(), return_exceptions=True)
    return [
        DeviceUnreachableError(name, turn_of(behind.get(name, "another run")))
        if isinstance(answer, asyncio.CancelledError)
        else answer
        for name, answer in zip(asking, answers, strict=True)
    ]
