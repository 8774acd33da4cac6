"""Simulated builders and devices for the real runtime. They sleep for stated times, all builders in one process and all
devices in another, so that two cores carry hundreds of them."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actors.clients.artifacts import unpacked
from actors.clients.calls import ask
from actors.clients.device import TaskArtifacts
from actors.heartbeat import Heartbeat, heartbeat
from actors.processes.builder import Builders, Worker
from actors.processes.recorder import make_record
from devices.protocol import Artifact, BuildRequest, BuildResult
from fleet_tune.base.domain import Measurement, Outcome, StopRule
from fleet_tune.base.records.stores.codec import encode_record
from policies.runs.events import BatchMeasured, ShootOutMeasured

_SPREAD = 0.3
_LIBRARY_BYTES = 20_000  # about the size of a kernel's library


class SimulatedBuilders(Builders):
    """Any number of builders of one machine; a build sleeps for ``build_secs``."""

    def __init__(self, build_secs: float) -> None:
        super().__init__(_no_worker, 0)
        self._build_secs = build_secs

    async def _build(self, place: int, request: BuildRequest) -> BuildResult:  # noqa: ARG002 - all are alike
        await asyncio.sleep(self._build_secs)
        return Artifact(
            task_id=request.task.id,
            candidate=request.candidate,
            library=bytes(_LIBRARY_BYTES),
            args=(),
            original_args=(),
            outputs=(),
            packed=(),
            trace="",
            build_secs=self._build_secs,
        )


def _no_worker() -> Worker:
    raise AssertionError("simulated builders have no processes")


class SimulatedDevices:
    """Async actor: any number of devices. ``faults``: share of candidates that crash."""

    def __init__(self, run_id: str, faults: float) -> None:
        self._run_id = run_id
        self._faults = faults
        self._rng = random.Random(0)
        self._busy: defaultdict[str, float] = defaultdict(float)

    async def measure(self, device_id: str, secs: float, artifacts: Sequence[Any], epoch: int) -> BatchMeasured:
        """Measure a batch, each candidate in about ``secs``; see
        :meth:`actors.processes.device.DeviceActor.measure`."""
        outcomes, records = {}, []
        for reference in artifacts:  # none of them is large
            artifact = unpacked(reference)
            assert artifact.candidate is not None
            taken = secs * self._rng.lognormvariate(0.0, _SPREAD)
            await asyncio.sleep(taken)
            self._busy[device_id] += taken
            crashed = self._rng.random() < self._faults
            measurement = (
                Measurement(Outcome.RUN_ERROR, measure_secs=taken, detail="stated fault")
                if crashed
                else Measurement(Outcome.OK, (self._rng.uniform(1e-3, 2e-3),) * 3, measure_secs=taken, verified=True)
            )
            outcomes[artifact.candidate.id] = measurement.outcome
            record = make_record(artifact.candidate, artifact.trace, measurement, self._run_id, device_id)
            records.append(encode_record(record))
        return BatchMeasured(device_id, epoch, outcomes, records=records)

    async def beat(self) -> Heartbeat:
        """Answer a heartbeat, for every device."""
        return heartbeat()

    async def busy(self) -> dict[str, float]:
        """Seconds in which each device has measured, by its name."""
        return dict(self._busy)


@dataclass
class SimulatedHandle:
    """One device of a :class:`SimulatedDevices`; see :class:`actors.clients.device.DeviceHandle`."""

    host: Any
    """The actor of all devices."""
    name: str
    secs: float
    """Time of a candidate."""

    async def turn(self, _report_wait: Callable[[str], None], _most_secs: float = 0.0) -> float:
        return 0.0

    async def probe(self) -> float:
        return 1e-3

    async def measure(
        self,
        artifacts: Sequence[Any],
        tasks: Mapping[str, TaskArtifacts],  # noqa: ARG002 - nothing is compared
        rule: StopRule,  # noqa: ARG002
        epoch: int,
        deadline_secs: float,
    ) -> BatchMeasured:
        measuring = self.host.measure.remote(self.name, self.secs, list(artifacts), epoch)
        measured: BatchMeasured = await ask(measuring, deadline_secs, "measure")
        return measured

    async def shoot_out(self, *_: Any) -> ShootOutMeasured:
        raise AssertionError("a run that is stopped while it tunes holds no shoot-out")

    def restart(self) -> None:
        """Do nothing: a simulated device never hangs."""
