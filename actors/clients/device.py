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
_TURN_SECS = 3.0  # of a wait for a turn, until people are told of it
_FIRST_TURN_SECS = 5.0
TURN_PATIENCE_SECS = 60.0
"""Longest time for which a batch waits for a device that other runs use too."""
_MISSED_BEATS = 2  # in a row: then the process that owns the device counts as hanging
_MISSED_BEATS_BEFORE_ANSWER = 8  # as long as a process may take to start: the device or its host may be slow

_T = TypeVar("_T")


class NotOurTurnError(FleetTuneError):
    """Another run uses the device: do other work meanwhile."""


@dataclass(frozen=True)
class TaskArtifacts:
    """The oracle and the incumbent of a task, for a device that measures candidates of it."""

    oracle: list[Any]
    """Reference of the artifact of the task's unscheduled program. It is in a list, so that Ray does not fetch it by
    itself: a process that has the oracle does not fetch it again."""
    incumbent: Incumbent = field(default_factory=Incumbent)
    """Best candidate of the task so far."""
    rival: list[Any] = field(default_factory=list)
    """Reference of the incumbent's artifact, in a list; empty if it is not built."""
    limit_secs: float | None = None
    """Longest measurement of a candidate; None for the rule's timeout."""


class DeviceHandle(Protocol):
    """One device, seen from its executor: :class:`DeviceClient`, or a stand-in of a test."""

    async def turn(self, report_wait: Callable[[str], None], most_secs: float = math.inf) -> float:
        """Wait for this run's turn on a device that other runs use too, and return the seconds of the wait. During the
        wait ``report_wait`` is called with the title of the run whose turn it is, and at the end with an empty title.
        Raises ActorLostError, and NotOurTurnError if the turn has not come after about ``most_secs``."""

    async def probe(self) -> float:
        """Return the seconds of one run of the probe. Connect first if necessary.

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
        """End the process that owns the device, since it hangs. Ray starts another one."""


class DeviceClient(BusyClient):
    """See :class:`actors.processes.device.DeviceActor`. ``target``: the target of the device's class, empty while that
    is not known. ``power``: the power mode in which the run measures the device, empty if it is not known.
    ``in_turns``: other runs of the cluster may use the device too.

    Ray may restart the actor at any time, so that each call tells it what it must know of the run. A call ends before
    its deadline if the process that owns the device gives no sign of life.
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
        with the reason for the wait, each time that the reason changes. Raises UserError for a device that must not be
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
        """Return a client of the same device, whose class has this target and which the run measures in this power
        mode."""
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
        # In lists, so that Ray does not fetch the artifacts on the way.
        entered = [([artifact], revision) for artifact, revision in finalists]
        running = self._actor.shoot_out.remote(entered, task, rule, self._recording, epoch, self._power)
        return await self._alive(ask(running, deadline_secs, "hold a shoot-out"))

    @property
    def _recording(self) -> ByValue[RecorderClient]:
        """The recorder's client, pickled once for all batches."""
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
    """Return the reason in words why a run waits for a device."""
    return f"it is the turn of {title}"


async def fingerprint_of(
    actor: Any, device_id: str, report_wait: Callable[[str], None] = lambda _: None
) -> Fingerprint:
    """Ask a device's actor for its fingerprint, which takes minutes on a slow device. ``report_wait``: is called with a
    text when the actor waits for something that another process has, and with an empty text once that wait is over.
    Raises DeviceUnreachableError, and UserError for a device that must not be used."""
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
    """Return :func:`fingerprint_of` of each of these devices, or the error that it raises, in order."""
    asking = (fingerprint_of(actor, name, report_wait) for name, actor in actors.items())
    return list(await asyncio.gather(*asking, return_exceptions=True))


async def fingerprints_in_turn(
    actors: Mapping[str, Any], report_wait: Callable[[str], None]
) -> list[Fingerprint | BaseException]:
    """:func:`fingerprints` of devices that other runs use too. Once one device has answered, the waits for devices that
    are another run's turn end with DeviceUnreachableError. ``report_wait``: as for :func:`turn_of_actor`, but with
    texts that name the device."""
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
