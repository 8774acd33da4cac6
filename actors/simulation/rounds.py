"""The parts of the real runtime, used in rounds as a tuner without a runtime uses them: candidates are proposed, all of
them are built, all of them are measured, and only then are the next ones proposed."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from actors.clusters.cluster import Cluster
from actors.simulation.run import SimulatedFleet, SimulatedParts, SimulatedRun
from devices.protocol import BuildRequest
from fleet_tune.base.domain import Candidate, StopRule, Task

_BATCHES = 4
"""Number of batches in a device's share of a round, so that no device waits long for the last one."""
_RULE = StopRule(race_factor=math.inf)


class SimulatedRounds(SimulatedRun):
    """A run in rounds. Each device class has its own rounds and its own share of the builders, so that the classes do
    not wait for each other. A round has ``size`` candidates of one task; the tasks of the class take turns."""

    def __init__(self, cluster: Cluster, fleet: SimulatedFleet, folder: Path, size: int) -> None:
        super().__init__(cluster, fleet, folder)
        self._size = size

    async def start(self) -> None:
        """Start the first round of each class."""
        parts = await self._start_parts()
        share = max(1, self._fleet.builders // len(self._fleet.classes))
        rounds = (self._rounds(parts, device_class, share) for device_class in self._fleet.classes)
        self._running = asyncio.ensure_future(_all(rounds))

    async def trials_a_second(self, secs: float) -> float:
        """Return the records per second in the next ``secs``. Raise the error that ends the run."""
        began, before = time.monotonic(), await self._records.last_seq()
        await self._wait(secs)
        return (await self._records.last_seq() - before) / (time.monotonic() - began)

    async def _rounds(self, parts: SimulatedParts, device_class: str, builders: int) -> None:
        tasks = [entry.task for entry in parts.tasks if entry.task.device_class.name == device_class]
        devices = [name for name, (each, _) in self._fleet.handles.items() if each == device_class]
        last_proposal = dict.fromkeys((task.id for task in tasks), 0)
        for task in itertools.cycle(tasks):
            proposed = await parts.searcher_of[task.id].propose(task.id, self._size, last_proposal[task.id])
            last_proposal[task.id] = proposed.number
            artifacts = await self._built(parts, task, proposed.candidates, builders)
            await self._measured(parts, devices, artifacts)

    async def _built(
        self, parts: SimulatedParts, task: Task, candidates: Sequence[Candidate], builders: int
    ) -> list[Any]:
        free = asyncio.Semaphore(builders)

        async def built(candidate: Candidate) -> Any:
            async with free:
                return await parts.builders[0].build(BuildRequest(task, candidate))

        return await asyncio.gather(*map(built, candidates))

    async def _measured(self, parts: SimulatedParts, devices: Sequence[str], artifacts: Sequence[Any]) -> None:
        """Measure a round: each free device takes the next batch."""
        size = max(1, len(artifacts) // (_BATCHES * len(devices)))
        batches = iter([artifacts[at : at + size] for at in range(0, len(artifacts), size)])

        async def measure(name: str) -> None:
            for batch in batches:
                measured = await parts.devices[name].measure(batch, {}, _RULE, 0, math.inf)
                await self._records.store([(measured.records, None)])

        await asyncio.gather(*map(measure, devices))


async def _all(working: Iterator[Any]) -> None:
    await asyncio.gather(*working)
