"""Simulated devices on the real runtime, in real time: ``python -m bench.runs.ray_fleet_process --devices 64`` prints
one JSON line.

Scheduler, searchers, recorder and Ray are those of a run. Devices and builders take the stated time asleep, all of them
in one process each, so that two cores carry hundreds; what they would compute is not part of the figures.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import psutil  # type: ignore[import-untyped]

from actors.calls import Shared, ask, remote_actor
from actors.clients import BatchReport, BuilderClient, RecorderClient, SchedulerClient, SearcherClient, TaskPlaces
from actors.cluster import connected
from actors.recorder import Recorder, make_record
from actors.roster import Roster
from actors.scheduler import Scheduler, SchedulerPlan
from actors.searcher import Searcher
from devices.protocol import Artifact, BuildFailure, BuildRequest
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.domain import DeviceClass, Limits, Measurement, Outcome, StopRule, Task, Workload
from fleet_tune.results import DeviceTime
from fleet_tune.search_task import SearchTask
from fleet_tune.sketch import Sketch, Tile
from policies.runs.pace import searchers
from policies.runs.plan import PlannedTask, RunPlan

_TASKS = 8  # of each class
_CLASSES = (("board", 1.6), ("server", 1.0), ("card", 0.6))
_SPREAD = 0.3
_CRASHES = 0.02
_WARM_UP_SECS = 10.0
_END_SECS = 60.0
_SPARE_BUILDERS = 1.25


class BuildHost:
    """Async actor: any number of builds, each of which takes ``build_secs`` asleep."""

    def __init__(self, build_secs: float) -> None:
        self._build_secs = build_secs

    async def build(self, request: BuildRequest) -> tuple[BuildFailure | None, Artifact]:
        await asyncio.sleep(self._build_secs)
        return None, Artifact(
            task_id=request.task.id,
            candidate=request.candidate,
            library=bytes(20_000),  # about what a kernel has
            args=(),
            original_args=(),
            outputs=(),
            packed=(),
            trace="",
            build_secs=self._build_secs,
        )


class DeviceHost:
    """Async actor: any number of devices, each of which takes its seconds asleep."""

    def __init__(self, run_id: str, recorder: Shared[RecorderClient]) -> None:
        self._run_id = run_id
        self._recorder = recorder.get()
        self._rng = random.Random(0)
        self._busy: defaultdict[str, float] = defaultdict(float)

    async def measure(self, device_id: str, secs: float, artifacts: Sequence[Any], epoch: int) -> BatchReport:
        outcomes, records = {}, []
        for reference in artifacts:
            artifact: Artifact = await reference
            assert artifact.candidate is not None
            taken = secs * self._rng.lognormvariate(0.0, _SPREAD)
            await asyncio.sleep(taken)
            self._busy[device_id] += taken
            crashed = self._rng.random() < _CRASHES
            measurement = (
                Measurement(Outcome.RUN_ERROR, measure_secs=taken, detail="stated fault")
                if crashed
                else Measurement(Outcome.OK, (self._rng.uniform(1e-3, 2e-3),) * 3, measure_secs=taken, verified=True)
            )
            outcomes[artifact.candidate.id] = measurement.outcome
            records.append(make_record(artifact.candidate, artifact.trace, measurement, self._run_id, device_id))
        handed_in = time.monotonic()
        await self._recorder.append(records, epoch)
        return BatchReport(outcomes, waits={DeviceTime.COMMIT: time.monotonic() - handed_in})

    async def busy(self) -> dict[str, float]:
        """Seconds in which each device has measured."""
        return dict(self._busy)


@dataclass
class HostedDevice:
    """One device of a :class:`DeviceHost`; see :class:`actors.clients.DeviceHandle`."""

    host: Any
    name: str
    secs: float

    async def check(self) -> float:
        return 1e-3

    async def measure(
        self,
        artifacts: Sequence[Any],
        tasks: Mapping[str, TaskPlaces],  # noqa: ARG002 - nothing is compared
        rule: StopRule,  # noqa: ARG002
        epoch: int,
        deadline_secs: float,
    ) -> BatchReport:
        measuring = self.host.measure.remote(self.name, self.secs, list(artifacts), epoch)
        report: BatchReport = await ask(measuring, deadline_secs, "measure")
        return report

    async def shoot_out(self, *_: Any) -> BatchReport:
        raise AssertionError("a run that collects holds no shoot-out")

    def restart(self) -> None:
        """Nothing hangs."""


def cpu_secs() -> dict[str, float]:
    """Processor seconds of every process below this one by its role, and of this one."""
    me = psutil.Process()
    used: defaultdict[str, float] = defaultdict(float)
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.Error):
            name = process.name()
            title = " ".join(process.cmdline())
            role = next((each for each in _ROLES if f"ray::{each}" in title), "driver" if process == me else "ray")
            times = process.cpu_times()
            used[role if not name.startswith("raylet") else "ray"] += times.user + times.system
    return dict(used)


_ROLES = ("Scheduler", "Searcher", "Recorder", "DeviceHost", "BuildHost")


async def play(count: int, candidate_secs: float, build_secs: float, secs: float, folder: Path) -> dict[str, Any]:
    tasks = [
        SearchTask(
            Task(
                Workload(f"task-{at}-{name}", f"task-{at}", 1e9, "{}"), DeviceClass(name, '{"kind":"llvm"}'), 1 + at % 4
            ),
            (Sketch(0, "toy", f"task {at} {name}", (Tile(4096, 4, 64), Tile(4096, 3, 64)), (), "a toy"),),
            SIMULATED_CPU,
        )
        for at in range(_TASKS)
        for name, _ in _CLASSES[:count]
    ]
    roster = Roster(folder / "tasks")
    roster.open()
    for entry in tasks:
        roster.add(entry)
    recorder = remote_actor(Recorder, concurrency=1000).remote(str(folder / "records.db"), {"network": "bench"})
    records = RecorderClient(recorder)
    await records.put_tasks([entry.task for entry in tasks])
    number = {entry.task.id: at // len(_CLASSES[:count]) % searchers(count) for at, entry in enumerate(tasks)}
    searching = []
    for at in range(1 + max(number.values())):
        mine = frozenset(task_id for task_id, dealt_to in number.items() if dealt_to == at)
        made = remote_actor(Searcher, concurrency=64).remote(roster, "random", 0, Shared(records), None, None, mine)
        searching.append(SearcherClient(made))
    await asyncio.gather(*(each.start() for each in searching))
    hosts = remote_actor(DeviceHost, concurrency=2 * count + 8).remote("run", Shared(records))
    devices = {}
    for at in range(count):
        name, factor = _CLASSES[at % len(_CLASSES)]
        devices[f"{name}-{at}"] = (name, HostedDevice(hosts, f"{name}-{at}", candidate_secs * factor))
    demand = sum(1 / device.secs for _, device in devices.values())
    builders = max(2, round(demand * build_secs * _SPARE_BUILDERS))
    build_host = remote_actor(BuildHost, concurrency=builders + 8).remote(build_secs)
    plan = RunPlan(
        run_id="run",
        tasks=tuple(PlannedTask(entry.task, ("toy",), 1e-9, searcher=number[entry.task.id]) for entry in tasks),
        devices={name: device_class for name, (device_class, _) in devices.items()},
        builders=builders,
        limits=Limits(time_budget_secs=600.0),
        rule=StopRule(race_factor=math.inf),
        build_timeout_secs=60.0,
    )
    scheduler = SchedulerClient(
        remote_actor(Scheduler, concurrency=64).remote(
            SchedulerPlan(plan, "random", 0),
            records,
            {task_id: searching[at] for task_id, at in number.items()},
            [BuilderClient(build_host)] * builders,
            {name: device for name, (_, device) in devices.items()},
        )
    )
    await scheduler.started()
    running = asyncio.ensure_future(scheduler.run())
    await asyncio.sleep(_WARM_UP_SECS)
    began, before, used = time.monotonic(), await records.last_seq(), cpu_secs()
    busy = await ask(hosts.busy.remote(), 30.0, "busy")
    await asyncio.sleep(secs)
    span = time.monotonic() - began
    durable = await records.last_seq() - before
    later, busy_later = cpu_secs(), await ask(hosts.busy.remote(), 30.0, "busy")
    progress = await scheduler.progress()
    by_class: Counter[str] = Counter()
    for name, (device_class, _) in devices.items():
        by_class[device_class] += (busy_later.get(name, 0.0) - busy.get(name, 0.0)) / span
    members = Counter(device_class for device_class, _ in devices.values())
    await scheduler.stop()
    with suppress(Exception):
        await asyncio.wait_for(running, _END_SECS)
    return {
        "devices": count,
        "builders": builders,
        "searchers": len(searching),
        "trials_a_second": durable / span,
        "busy": sum(by_class.values()) / count,
        "busy_by_class": {name: by_class[name] / members[name] for name in members},
        "bound": progress.bounds,
        "cpu_secs_a_record": sum(later.values()) / durable - sum(used.values()) / durable if durable else None,
        "cpu_secs_a_record_by_role": {
            role: (later[role] - used.get(role, 0.0)) / durable for role in sorted(later) if durable
        },
        "secs": span,
    }


@click.command()
@click.option("--devices", type=int, required=True)
@click.option("--candidate", "candidate_secs", type=float, default=0.5)
@click.option("--build", "build_secs", type=float, default=0.6)
@click.option("--seconds", type=float, default=20.0)
def main(devices: int, candidate_secs: float, build_secs: float, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder, connected(None):
        print(json.dumps(asyncio.run(play(devices, candidate_secs, build_secs, seconds, Path(folder)))))


if __name__ == "__main__":
    main()
