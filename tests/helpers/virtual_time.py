"""An event loop in which waiting takes no time, and simulated devices that live in it."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from actors.calls import ActorTimeoutError
from actors.finalists import measured_in_turn
from actors.remote_device import BatchReport
from devices.protocol import Artifact, MeasureRequest
from devices.simulated.simulated import SimulatedDevice, VirtualClock
from fleet_tune.domain import Measurement, Outcome, StopRule

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Instead of waiting for a timer, time jumps to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_secs = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            waiting = [str(task.get_stack()[-1:]) for task in asyncio.all_tasks(asyncio.get_running_loop())]
            raise AssertionError(f"nothing is left that could ever happen; waiting: {waiting}")
        self.now_secs += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_secs


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, with time as fast as it can be computed."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class VirtualDevice:
    """A simulated device as an :class:`actors.remote_device.DeviceHandle`; it takes its time of the virtual loop.

    ``stored``: what all devices have measured, by candidate id. ``hangs_at``: virtual time after which the process that
    owns the device stops answering, until it is restarted.
    """

    def __init__(
        self,
        device: SimulatedDevice,
        clock: VirtualClock,
        stored: dict[str, tuple[str, Measurement]],
        name: str,
        hangs_at: float | None = None,
    ) -> None:
        self.name = name
        self._device = device
        self._clock = clock
        self._stored = stored
        self._hangs_at = hangs_at
        self.restarts = 0
        self.measured_under: list[int] = []
        self.met: list[tuple[str, ...]] = []

    async def check(self) -> float:
        return await self._timed(self._device.probe_secs)

    async def measure(
        self,
        artifacts: Sequence[Artifact],
        oracles: Mapping[str, tuple[list[Any], float]],
        rule: StopRule,
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        self.measured_under.append(epoch)
        outcomes: dict[str, Outcome] = {}
        found: dict[str, tuple[str, Measurement]] = {}
        detail = ""
        for [oracle], _ in oracles.values():
            self._device.add_oracle(oracle)
        for artifact in artifacts:
            assert artifact.candidate is not None
            await self._hang(deadline_secs)
            best_secs = oracles[artifact.task_id][1]
            request = MeasureRequest(artifact, best_secs, rule)
            measured = await self._timed(lambda request=request: self._device.measure(request))
            outcomes[artifact.candidate.id] = measured.outcome
            if measured.outcome is Outcome.DEVICE_LOST:
                detail = measured.detail
                break
            found[artifact.candidate.id] = (self.name, measured)
        # As the real one does: a batch is stored at its end.
        assert not found.keys() & self._stored.keys(), "measured twice"
        self._stored.update(found)
        return BatchReport(outcomes, detail)

    async def shoot_out(
        self,
        finalists: Sequence[tuple[Artifact, int]],
        oracle: Artifact,
        rule: StopRule,
        rounds: int,
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        self.measured_under.append(epoch)
        self._device.add_oracle(oracle)
        await self._hang(deadline_secs)
        artifacts = [artifact for artifact, _ in finalists]
        found = await self._timed(lambda: measured_in_turn(self._device.measure, artifacts, rule, rounds))
        if isinstance(found, Measurement):
            return BatchReport(detail=found.detail)
        self.met.append(tuple(artifact.candidate.id for artifact in artifacts if artifact.candidate))
        return BatchReport()

    async def beat(self) -> None:
        await self._hang(15.0)

    def restart(self) -> None:
        self.restarts += 1
        self._hangs_at = None

    async def _hang(self, deadline_secs: float) -> None:
        if self._hangs_at is not None and asyncio.get_running_loop().time() >= self._hangs_at:
            await asyncio.sleep(deadline_secs)
            raise ActorTimeoutError("no answer")

    async def _timed(self, call: Any) -> Any:
        """The answer of the simulated device, after the time that it says it took."""
        self._clock.now_secs = asyncio.get_running_loop().time()
        try:
            return call()
        finally:
            took = self._clock.now_secs - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, took))
