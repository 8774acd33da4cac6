"""Devices that leave while the scheduler is busy with something else."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from actors.clients.handles import ActorHandles
from actors.clients.recorder import RecorderClient
from actors.scheduling.scheduler import Scheduler, SchedulerPlan
from policies.runs.events import DeviceLeft
from policies.runs.plan import RunPlan
from policies.search.methods.random import RANDOM


async def test_a_device_may_leave_again_whose_leaving_took_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = SchedulerPlan(RunPlan("run", (), {}, 1), RANDOM, 0)
    scheduler = Scheduler(plan, cast(RecorderClient, cast(Any, None)), ActorHandles())
    monkeypatch.setattr("actors.scheduling.scheduler._LEAVE_SECS", 0.01)
    for reason in ("its entry has changed", "it is no longer in the fleet file"):
        await scheduler.tell(DeviceLeft("a", reason))
    monkeypatch.setattr("actors.scheduling.scheduler._LEAVE_SECS", 10.0)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(scheduler._serve(group))
        async with asyncio.timeout(5.0):
            await scheduler.tell(DeviceLeft("b", "it is no longer in the fleet file"))
        assert not serving.done()
        serving.cancel()
