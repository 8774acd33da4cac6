"""Execution of commands on a device, in the tuning and in the shoot-outs alike."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from actors.clients.artifacts import Artifacts
from actors.clients.calls import LOST, ActorLostError, ActorTimeoutError, error_line, first_line
from actors.clients.device import TURN_PATIENCE_SECS, DeviceHandle, NotOurTurnError, TaskArtifacts
from actors.scheduling.record_batcher import RecordBatcher
from devices.host.quiet_windows.quiet_window import QuietTimeoutError, WindowLostError
from fleet_tune.base.domain import Incumbent, StopRule
from fleet_tune.base.errors import DeviceUnreachableError, ProbeError, RecorderLostError
from fleet_tune.base.results import DeviceTime
from policies.runs.commands import Measure, ShootOut
from policies.runs.events import (
    BatchLost,
    BatchMeasured,
    BatchPostponed,
    DeviceProbed,
    DeviceProbeFailed,
    DeviceUnreachable,
    ShootOutMeasured,
)


class DeviceExecutor:
    """Executes the commands for one device.

    ``rule``: when a measurement ends. ``storing``: stores what the device measures. ``report_wait``: is called with the
    title of the run whose turn it is, while this run waits for its own turn, and with an empty text once the wait is
    over."""

    def __init__(
        self,
        device_id: str,
        device: DeviceHandle,
        artifacts: Artifacts,
        rule: StopRule,
        storing: RecordBatcher,
        report_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.device_id = device_id
        self._device = device
        self._artifacts = artifacts
        self._rule = rule
        self._storing = storing
        self._stored: asyncio.Future[None] | None = None  # of the last batch
        self._report_wait = report_wait

    async def probe(self) -> DeviceProbed | DeviceProbeFailed | DeviceUnreachable:
        """Run the probe."""
        try:
            await self._device.turn(self._report_wait)
            secs = await self._device.probe()
        except ProbeError as error:
            return DeviceProbeFailed(self.device_id, first_line(error))
        except (DeviceUnreachableError, WindowLostError, QuietTimeoutError, *LOST) as error:
            hangs = isinstance(error, ActorTimeoutError)
            outside = isinstance(error, ActorLostError | WindowLostError | QuietTimeoutError)
            return DeviceUnreachable(self.device_id, first_line(error), hangs, outside)
        except RecorderLostError:
            raise
        except Exception as error:  # another TVM or key, a GPU without its driver: a matter of this device alone
            return DeviceProbeFailed(self.device_id, error_line(error))
        return DeviceProbed(self.device_id, secs)

    def measure(self, command: Measure) -> Awaitable[BatchMeasured | BatchLost | BatchPostponed]:
        """Measure a batch. The artifacts are looked up at once, before they can be dropped."""
        artifacts = [self._artifacts[each.id] for each in command.candidates]
        tasks = {
            each: self._task_artifacts(each, incumbent, command.limits.get(each))
            for each, incumbent in command.incumbents.items()
        }
        return self._measure(command, artifacts, tasks)

    def shoot_out(self, command: ShootOut) -> Awaitable[ShootOutMeasured | BatchLost | BatchPostponed]:
        """Let the finalists of a task meet. The artifacts are looked up at once."""
        finalists = [(self._artifacts[candidate.id], revision) for candidate, revision in command.finalists]
        return self._shoot_out(command, finalists, self._task_artifacts(command.task_id, command.incumbent))

    def restart(self) -> None:
        """End the process that owns the device."""
        self._device.restart()

    def _task_artifacts(self, task_id: str, incumbent: Incumbent, limit_secs: float | None = None) -> TaskArtifacts:
        rival = self._artifacts.reference(incumbent.candidate_id)
        return TaskArtifacts(
            [self._artifacts.reference(task_id)], incumbent, [] if rival is None else [rival], limit_secs
        )

    async def _measure(
        self, command: Measure, artifacts: Sequence[Any], tasks: Mapping[str, TaskArtifacts]
    ) -> BatchMeasured | BatchLost | BatchPostponed:
        try:
            waited_secs = await self._device.turn(self._report_wait, TURN_PATIENCE_SECS)
            measured = await self._device.measure(artifacts, tasks, self._rule, command.epoch, command.deadline_secs)
        except (NotOurTurnError, WindowLostError, QuietTimeoutError):
            return BatchPostponed(self.device_id, command.epoch)
        except Exception as error:  # a matter of this device alone
            return self._lost(command.epoch, error)
        waits = {**measured.waits, **({DeviceTime.TURN: waited_secs} if waited_secs else {})}
        if measured.records:
            waits |= await self._store(measured.records, command.epoch)
        return dataclasses.replace(measured, waits=waits, records=())

    async def _store(self, records: Sequence[bytes], epoch: int) -> dict[DeviceTime, float]:
        """Hand in the records of a batch. The device goes on meanwhile, but at most one batch ahead of the store.
        Return the time that it waited for the store."""
        waits: dict[DeviceTime, float] = {}
        if self._stored is not None and not self._stored.done():
            began = time.monotonic()
            await asyncio.wait([self._stored])
            waits[DeviceTime.COMMIT] = time.monotonic() - began
        self._stored = self._storing.store(records, epoch)
        return waits

    async def _shoot_out(
        self, command: ShootOut, finalists: Sequence[tuple[Any, int]], task: TaskArtifacts
    ) -> ShootOutMeasured | BatchLost | BatchPostponed:
        try:
            await self._device.turn(self._report_wait, TURN_PATIENCE_SECS)
            return await self._device.shoot_out(finalists, task, command.rule, command.epoch, command.deadline_secs)
        except (NotOurTurnError, WindowLostError, QuietTimeoutError):
            return BatchPostponed(self.device_id, command.epoch)
        except Exception as error:  # a matter of this device alone
            return self._lost(command.epoch, error)

    def _lost(self, epoch: int, error: Exception) -> BatchLost:
        hangs, outside = isinstance(error, ActorTimeoutError), isinstance(error, ActorLostError)
        detail = first_line(error) if isinstance(error, LOST) else error_line(error)
        return BatchLost(self.device_id, epoch, detail, hangs, outside)
