"""What the dispatch asks of a device, and the Ray actor behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from actors.calls import WINDOW_WAIT_SECS, ActorLostError, ActorTimeoutError, ask
from fleet_tune.domain import Outcome, StopRule
from policies.measuring.speed import Baseline

# The answer of a thread that has nothing else to do, on a machine that may be busy.
_BEAT_SECS = 15.0
_BEAT_EVERY_SECS = 5.0
_MISSED_BEATS = 2  # in a row, and the process that owns the device is taken for hanging


@dataclass(frozen=True)
class BatchReport:
    """What became of a batch. ``outcomes`` by candidate id: all of them are stored but DEVICE_LOST, which only the last
    one can be. Candidates without an outcome were not tried. ``detail``: how the device was lost, empty if it was not.
    ``vitals``: what the device told of its hardware (see :mod:`devices.host.vitals`), and its ``drift``.
    """

    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    detail: str = ""
    vitals: Mapping[str, float] = field(default_factory=dict)


class DeviceHandle(Protocol):
    """One device, seen from the dispatch. Every call may raise :class:`actors.calls.ActorLostError` (the process that
    owns the device is gone, and comes back) and :class:`actors.calls.ActorTimeoutError`."""

    async def check(self) -> float:
        """Seconds of one run of the probe, connecting first where that is needed.

        Raises DeviceUnreachableError, ProbeError.
        """

    async def measure(
        self,
        artifacts: Sequence[Any],
        oracles: Mapping[str, tuple[list[Any], float]],
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        """Measure and store a batch; see :meth:`actors.device.DeviceActor.measure`. Raises StaleLeaseError."""

    async def shoot_out(
        self,
        finalists: Sequence[tuple[Any, int]],
        oracle: Any,
        rule: StopRule,
        rounds: int,
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        """Measure the finalists of a task in turn; see :meth:`actors.device.DeviceActor.shoot_out`. Raises
        StaleLeaseError."""

    async def beat(self) -> None:
        """A sign of life of the process that owns the device, also while it measures."""

    def restart(self) -> None:
        """End that process, which hangs; another one takes its place."""


class RemoteDevice:
    """The actor of a device as a :class:`DeviceHandle`. ``target``: that of its class.

    Ray may start the actor again at any time. What the device was like when it joined is kept here, so that a restarted
    actor goes on with it.
    """

    def __init__(self, actor: Any, target: str, recorder: Any) -> None:
        self._actor = actor
        self._target = target
        self._recorder = recorder
        self._baseline: Baseline | None = None

    async def check(self) -> float:
        checking = self._actor.check.remote(self._target, self._baseline)
        found: tuple[float, Baseline] = await ask(checking, WINDOW_WAIT_SECS, "run the probe")
        secs, self._baseline = found
        return secs

    async def measure(
        self,
        artifacts: Sequence[Any],
        oracles: Mapping[str, tuple[list[Any], float]],
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        measuring = self._actor.measure.remote(artifacts, oracles, rule, self._recorder, epoch)
        report: BatchReport = await ask(measuring, deadline_secs, "measure")
        return report

    async def shoot_out(
        self,
        finalists: Sequence[tuple[Any, int]],
        oracle: Any,
        rule: StopRule,
        rounds: int,
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        # In lists, so that Ray does not fetch them on the way.
        entered = [([artifact], revision) for artifact, revision in finalists]
        running = self._actor.shoot_out.remote(entered, [oracle], rule, rounds, self._recorder, epoch)
        report: BatchReport = await ask(running, deadline_secs, "hold a shoot-out")
        return report

    async def beat(self) -> None:
        await ask(self._actor.beat.options(concurrency_group="beat").remote(), _BEAT_SECS, "a sign of life")

    def restart(self) -> None:
        import ray

        with contextlib.suppress(Exception):  # it may be gone by itself meanwhile
            ray.kill(self._actor, no_restart=False)


async def watched(device: DeviceHandle, working: Awaitable[BatchReport]) -> BatchReport:
    """The report of what the device does now. Raises what ``working`` raises, and ActorTimeoutError as soon as the
    process that owns the device gives no sign of life: that is not waited for to its deadline."""
    work = asyncio.ensure_future(working)
    missed = 0
    try:
        while True:
            done, _ = await asyncio.wait([work], timeout=_BEAT_EVERY_SECS)
            if done:
                return work.result()
            try:
                await device.beat()
                missed = 0
            except ActorTimeoutError:
                missed += 1
                if missed >= _MISSED_BEATS and not work.done():
                    raise ActorTimeoutError("the process that owns the device gives no sign of life") from None
            except ActorLostError:
                continue  # the work fails with it
    finally:
        work.cancel()
