"""A Ray cluster and simulated hosts for the tests of the actors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.clients.builder import builder_clients
from actors.clients.calls import ByValue, remote_actor
from actors.clients.device import DeviceClient
from actors.clients.handles import ActorHandles
from actors.clients.learner import LearnerClient
from actors.clients.recorder import RecorderClient
from actors.clients.scheduler import SchedulerClient
from actors.clients.searcher import SearcherClient
from actors.processes.builder import Worker, builders_actor
from actors.processes.device import device_actor
from actors.processes.learner import Learner
from actors.processes.recorder import Recorder
from actors.processes.searcher import Searcher
from actors.processes.task_registry import TaskRegistry
from actors.scheduling.scheduler import Scheduler, SchedulerPlan
from devices.protocol import Device
from devices.simulated.simulated import (
    SIMULATED_CPU,
    Drift,
    Faults,
    Landscape,
    SimulatedBuilder,
    SimulatedDevice,
    SpeedSteps,
)
from fleet_tune.base.domain import DeviceClass, Limits, Record, StopRule
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Sketch, Tile
from policies.measuring.adaptive_stopping import decide
from policies.runs.events import SketchesReady
from policies.runs.plan import InFlightLimits, RunPlan
from policies.runs.planned_task import PlannedTask
from policies.search.methods import method_named
from tests.helpers.tasks import make_task

CLASS = DeviceClass("simulated", '{"kind":"llvm"}')


def search_task(name: str, extent: int = 64, weight: int = 1, device_class: DeviceClass = CLASS) -> SearchTask:
    """A task with one undescribed sketch of two tiles."""
    task = make_task(name, device_class.name, target=device_class.target, weight=weight)
    sketch = Sketch(0, "toy", f"{name} trace", (Tile(extent, 3, 64), Tile(extent, 2, 64)), (), "a toy")
    return SearchTask(task, (sketch,), SIMULATED_CPU)


def roster_of(folder: Path, tasks: Iterable[SearchTask]) -> TaskRegistry:
    """A roster in this folder with tasks that are described."""
    roster = TaskRegistry(folder)
    roster.open()
    for entry in tasks:
        roster.add(entry)
    return roster


def trials(store: Path) -> list[Record]:
    """The records of trials in a store, without revisions."""
    with RecordReader(store) as reader:
        return [record for record in reader if record.revision == 0]


@contextlib.contextmanager
def open_simulated(
    faults: Faults,
    seed: int,
    noise: float = 0.02,
    drift: Drift | SpeedSteps | None = None,
    landscape: Landscape | None = None,
) -> Iterator[Device]:
    yield SimulatedDevice(CLASS, decide=decide, faults=faults, seed=seed, noise=noise, drift=drift, landscape=landscape)


OpenDevice = Callable[[], contextlib.AbstractContextManager[Device]]


@dataclass
class Fleet:
    """Real actors around simulated builders and devices. ``late``: ids of tasks that are not described before
    :meth:`describe`."""

    store: Path
    tasks: tuple[SearchTask, ...]
    late: frozenset[str] = frozenset()
    device_faults: tuple[Faults, ...] = (Faults(),)
    open_devices: tuple[OpenDevice, ...] = ()  # instead of simulated ones
    make_builder: Callable[[], Worker] | None = None  # instead of a simulated one
    rule: StopRule = field(default_factory=StopRule)
    build_faults: Faults = field(default_factory=Faults)
    builders: int = 1
    run_id: str = "run"
    method: str = "random"
    device_patience_secs: float = 120.0
    flow: InFlightLimits = field(default_factory=InFlightLimits)
    orders: Path | None = None
    noise: float = 0.02
    landscape: Landscape = field(default_factory=Landscape)
    drift: Drift | SpeedSteps | None = None
    check_every_secs: float = 120.0
    learner: bool = False
    actors: dict[str, Any] = field(default_factory=dict)

    def start(
        self, *, trials: int | None = None, time_budget_secs: float | None = None, per_task: int | None = None
    ) -> Any:
        """Start everything; returns the scheduler's actor."""
        method = method_named(self.method)
        roster = roster_of(self._folder, (entry for entry in self.tasks if entry.task.id not in self.late))
        recorder = remote_actor(Recorder, concurrency=64).remote(str(self.store), {"network": "toy"})
        records = RecorderClient(recorder)
        learner = None
        if self.learner:
            learner = remote_actor(Learner, restarts=-1, concurrency=16).remote(
                roster, method, 0, ByValue(records), None, str(self.store.parent / "models")
            )
        searcher = remote_actor(Searcher, restarts=-1, concurrency=16).remote(
            roster,
            method,
            0,
            ByValue(records),
            None if learner is None else ByValue(LearnerClient(learner)),
            None,
        )
        make_builder = self.make_builder or partial(SimulatedBuilder, faults=self.build_faults, seed=99)
        search = SearcherClient(searcher)
        builders = [builders_actor().remote(make_builder, 1) for _ in range(self.builders)]
        simulated = (
            partial(open_simulated, faults, at, self.noise, self.drift, self.landscape)
            for at, faults in enumerate(self.device_faults)
        )
        open_devices = self.open_devices or tuple(simulated)
        devices = {
            f"device-{at}": device_actor().remote(f"device-{at}", open_device, self.run_id, None)
            for at, open_device in enumerate(open_devices)
        }
        device_class = self.tasks[0].task.device_class
        run = RunPlan(
            run_id=self.run_id,
            tasks=tuple(
                PlannedTask(entry.task, None if entry.task.id in self.late else ("toy",), 1e-9) for entry in self.tasks
            ),
            devices=dict.fromkeys(devices, device_class.name),
            builders=len(builders),
            limits=Limits(time_budget_secs, trials, per_task),
            rule=self.rule,
            device_patience_secs=self.device_patience_secs,
            flow=self.flow,
            check_every_secs=self.check_every_secs,
            build_timeout_secs=5.0,
        )
        scheduler = remote_actor(Scheduler, concurrency=16).remote(
            SchedulerPlan(run, method, 0, self.orders),
            records,
            ActorHandles(
                searchers={entry.task.id: search for entry in self.tasks},
                builders=builder_clients(dict(enumerate(builders))),
                devices={name: DeviceClient(device, device_class.target, records) for name, device in devices.items()},
            ),
            None if learner is None else LearnerClient(learner),
        )
        self.actors = {"recorder": recorder, "searcher": searcher, "scheduler": scheduler, **devices}
        if learner is not None:
            self.actors["learner"] = learner
        self.actors |= {f"builder-{at}": builder for at, builder in enumerate(builders)}
        return scheduler

    async def describe(self, entry: SearchTask) -> None:
        """A task that was late is described now."""
        TaskRegistry(self._folder).add(entry)
        await SchedulerClient(self.actors["scheduler"], ActorHandles()).tell(SketchesReady(entry.task.id, ("toy",)))

    @property
    def _folder(self) -> Path:
        return self.store.parent / "models" / "tasks"

    def stop(self) -> None:
        import ray

        for actor in self.actors.values():
            ray.kill(actor, no_restart=True)


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Makes fleets; ends their actors after the test."""
    request.getfixturevalue("ray_cluster")
    made: list[Fleet] = []

    def make(**settings: Any) -> Fleet:
        settings.setdefault("tasks", (search_task("a"), search_task("b", weight=3)))
        made.append(Fleet(tmp_path / "records.db", **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()
