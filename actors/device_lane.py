"""The lane of a device: carries out what a run wants of it, in its tuning and in its shoot-outs alike."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from actors.artifacts import Artifacts
from actors.calls import ActorTimeoutError, first_line
from actors.clients import LOST, DeviceHandle
from fleet_tune.domain import StopRule
from fleet_tune.errors import DeviceUnreachableError, ProbeError, StaleLeaseError
from policies.runs.commands import Measure, ShootOut
from policies.runs.events import BatchLost, BatchMeasured, Probed, ProbeFailed, ShotOut, Unreachable


class DeviceLane:
    """``rule``: when a measurement ends."""

    def __init__(self, device_id: str, device: DeviceHandle, artifacts: Artifacts, rule: StopRule) -> None:
        self._device_id = device_id
        self._device = device
        self._artifacts = artifacts
        self._rule = rule

    async def check(self) -> Probed | ProbeFailed | Unreachable:
        """Run the probe."""
        try:
            secs = await self._device.check()
        except ProbeError as error:
            return ProbeFailed(self._device_id, first_line(error))
        except (DeviceUnreachableError, *LOST) as error:
            return Unreachable(self._device_id, first_line(error), isinstance(error, ActorTimeoutError))
        return Probed(self._device_id, secs)

    def measure(self, command: Measure) -> Awaitable[BatchMeasured | BatchLost]:
        """Measure a batch. The artifacts are looked up at once, before anything can be forgotten."""
        artifacts = [self._artifacts[each.id] for each in command.candidates]
        # In lists, so that Ray does not fetch them on the way.
        oracles = {each: ([self._artifacts[each]], secs) for each, secs in command.incumbent_secs.items()}
        return self._measure(command, artifacts, oracles)

    def shoot_out(self, command: ShootOut) -> Awaitable[ShotOut | BatchLost]:
        """Measure the finalists of a task in turn. The artifacts are looked up at once."""
        finalists = [(self._artifacts[candidate.id], revision) for candidate, revision in command.finalists]
        return self._shoot_out(command, finalists, self._artifacts[command.task_id])

    def restart(self) -> None:
        """End the process that owns the device."""
        self._device.restart()

    async def _measure(
        self, command: Measure, artifacts: Sequence[Any], oracles: Mapping[str, tuple[list[Any], float]]
    ) -> BatchMeasured | BatchLost:
        try:
            report = await self._device.measure(artifacts, oracles, self._rule, command.epoch, command.deadline_secs)
        except (StaleLeaseError, *LOST) as error:
            return self._lost(command.epoch, error)
        return BatchMeasured(self._device_id, command.epoch, report.outcomes, report.detail, report.vitals)

    async def _shoot_out(
        self, command: ShootOut, finalists: Sequence[tuple[Any, int]], oracle: Any
    ) -> ShotOut | BatchLost:
        try:
            report = await self._device.shoot_out(
                finalists, oracle, command.rule, command.rounds, command.epoch, command.deadline_secs
            )
        except (StaleLeaseError, *LOST) as error:
            return self._lost(command.epoch, error)
        return ShotOut(self._device_id, command.epoch, report.detail)

    def _lost(self, epoch: int, error: Exception) -> BatchLost:
        return BatchLost(self._device_id, epoch, first_line(error), isinstance(error, ActorTimeoutError))
