"""A Ray cluster and simulated hosts for the tests of the actors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.builder import Builder
from actors.calls import Shared, remote_actor
from actors.cluster import connected
from actors.device import DeviceActor
from actors.recorder import Recorder
from actors.scheduler import Scheduler, SchedulerPlan
from actors.searcher import Searcher, SearchTask
from devices.device import Device
from devices.simulated import SIMULATED_CPU, Faults, SimulatedBuilder, SimulatedDevice
from fleet_tune.domain import DeviceClass, Task, Workload
from fleet_tune.sketch import Sketch, Tile
from policies.stopping import decide

CLASS = DeviceClass("simulated", '{"kind":"llvm"}')


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    with connected(None):
        yield


def search_task(name: str, extent: int = 64, weight: int = 1) -> SearchTask:
    """A task with one undescribed sketch of two tiles."""
    task = Task(Workload(name, name, 1e6, "{}"), CLASS, weight)
    sketch = Sketch(0, "toy", f"{name} trace", (Tile(extent, 3, 64), Tile(extent, 2, 64)), (), "a toy")
    return SearchTask(task, (sketch,), SIMULATED_CPU)


@contextlib.contextmanager
def open_simulated(faults: Faults, seed: int) -> Iterator[Device]:
    yield SimulatedDevice(CLASS, decide=decide, faults=faults, seed=seed)


@dataclass
class Fleet:
    """Real actors around simulated builders and devices."""

    store: Path
    tasks: tuple[SearchTask, ...]
    device_faults: tuple[Faults, ...] = (Faults(),)
    build_faults: Faults = field(default_factory=Faults)
    builders: int = 2
    run_id: str = "run"
    method: str = "random"
    device_patience_secs: float = 120.0
    actors: dict[str, Any] = field(default_factory=dict)
    shared: Shared[tuple[SearchTask, ...]] | None = None

    def start(
        self, *, trials: int | None = None, time_budget_secs: float | None = None, per_task: int | None = None
    ) -> Any:
        """Start everything; returns the scheduler's actor."""
        self.shared = Shared.put(self.tasks)
        recorder = remote_actor(Recorder, concurrency=64).remote(str(self.store), {"network": "toy"})
        searcher = remote_actor(Searcher, restarts=-1, concurrency=16).remote(
            self.shared, self.method, 0, Shared.put(recorder), None, None
        )
        make_builder = partial(SimulatedBuilder, faults=self.build_faults, seed=99)
        builders = [remote_actor(Builder, restarts=-1).remote(make_builder, None) for _ in range(self.builders)]
        devices = {
            f"device-{at}": remote_actor(DeviceActor, restarts=-1).remote(
                f"device-{at}", partial(open_simulated, faults, at), self.run_id, None
            )
            for at, faults in enumerate(self.device_faults)
        }
        plan = SchedulerPlan(
            run_id=self.run_id,
            method=self.method,
            tasks=tuple(entry.task for entry in self.tasks),
            sketch_rules={entry.task.id: ("toy",) for entry in self.tasks},
            floor_secs={entry.task.id: 1e-9 for entry in self.tasks},
            trial_limit=trials,
            time_budget_secs=time_budget_secs,
            build_timeout_secs=5.0,
            seed=0,
            task_limit=per_task,
            device_patience_secs=self.device_patience_secs,
        )
        scheduler = remote_actor(Scheduler, concurrency=16).remote(
            plan,
            recorder,
            {entry.task.id: searcher for entry in self.tasks},
            builders,
            {name: (CLASS.name, device) for name, device in devices.items()},
        )
        self.actors = {"recorder": recorder, "searcher": searcher, "scheduler": scheduler, **devices}
        self.actors |= {f"builder-{at}": builder for at, builder in enumerate(builders)}
        return scheduler

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
