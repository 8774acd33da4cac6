"""The real runtime around simulated builders and devices: how busy it keeps them, and how much processor time and
memory each of its processes uses. Scheduler, searchers, recorder and Ray are those of a run; only builds and
measurements are simulated."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from actors.clients.base import ActorClient
from actors.clients.builder import BuilderClient, builder_clients
from actors.clients.calls import ByValue, ask, remote_actor
from actors.clients.handles import ActorHandles
from actors.clients.recorder import RecorderClient
from actors.clients.scheduler import SchedulerClient
from actors.clients.searcher import SearcherClient
from actors.clusters.cluster import Cluster
from actors.fleet_usage import SIMULATED, FleetUsage, Use, since, used
from actors.processes.recorder import Recorder
from actors.processes.searcher import Searcher
from actors.processes.task_registry import TaskRegistry
from actors.scheduling.heartbeats import Heartbeats, WatchedProcess
from actors.scheduling.scheduler import Scheduler, SchedulerPlan
from actors.simulation.hosts import SimulatedBuilders, SimulatedDevices, SimulatedHandle
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.domain import DeviceClass, Limits, StopRule, Task, Workload
from fleet_tune.base.results import ProcessRole
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Sketch, Tile
from policies.runs.events import ProcessRestarted
from policies.runs.plan import RunPlan
from policies.runs.planned_task import PlannedTask
from policies.runs.stages.pace import searchers
from policies.search.methods.random import RANDOM

_LOG = logging.getLogger(__name__)
CLASSES = (("board", 1.6), ("server", 1.0), ("card", 0.6))
"""Classes of simulated devices, with the time of a candidate as a multiple of the stated one."""
_TASKS = 8  # of each class
_EXTENT = 4096  # so many candidates that no run exhausts them
_SPARE_BUILDERS = 1.25
_RUN_ID = "run"
_ANSWER_SECS = 60.0
_STORE_NAME = "records.db"


@dataclass(frozen=True)
class SimulatedFleet:
    """A fleet of simulated devices, with builders for a quarter more than the devices ask for."""

    devices: int
    """Number of devices, of three classes in turn."""
    candidate_secs: float
    """Approximate time of a candidate, before the factor of its class."""
    build_secs: float
    faults: float
    """Share of candidates that crash."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Classes that have a device."""
        return tuple(name for name, _ in CLASSES[: self.devices])

    @property
    def handles(self) -> dict[str, tuple[str, float]]:
        """The class of each device and its time for a candidate, by the device's name."""
        return {
            f"{name}-{at}": (name, self.candidate_secs * factor)
            for at in range(self.devices)
            for name, factor in (CLASSES[at % len(CLASSES)],)
        }

    @property
    def demand(self) -> float:
        """Trials per second if no device ever waited."""
        return sum(1 / secs for _, secs in self.handles.values())

    @property
    def builders(self) -> int:
        return max(2, round(self.demand * self.build_secs * _SPARE_BUILDERS))


@dataclass(frozen=True)
class SimulatedParts:
    """The started parts of a simulated run."""

    tasks: list[SearchTask]
    number: dict[str, int]
    """Number of a task's searcher, by the task's id."""
    searcher_of: dict[str, SearcherClient]
    """A task's searcher, by the task's id."""
    build_host: Any
    """The actor of all builders."""
    builders: dict[int, BuilderClient]
    devices: dict[str, SimulatedHandle]


class SimulatedRun:
    """A simulated run between :meth:`start` and :meth:`stop`. ``folder``: a folder of its own on this host."""

    def __init__(self, cluster: Cluster, fleet: SimulatedFleet, folder: Path) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._folder = folder
        self._roles: dict[str, list[Any]] = {}
        self._running: asyncio.Future[None] | None = None
        self._watching: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start to tune."""
        fleet = self._fleet
        parts = await self._start_parts()
        plan = RunPlan(
            run_id=_RUN_ID,
            tasks=tuple(
                PlannedTask(entry.task, ("toy",), 1e-9, searcher=parts.number[entry.task.id]) for entry in parts.tasks
            ),
            devices={name: device_class for name, (device_class, _) in fleet.handles.items()},
            builders=fleet.builders,
            limits=Limits(),
            rule=StopRule(race_factor=math.inf),
            build_timeout_secs=60.0 + fleet.build_secs,
        )
        self._scheduler = SchedulerClient(
            self._made(
                "scheduler",
                Scheduler,
                64,
                SchedulerPlan(plan, RANDOM, 0),
                self._records,
                ActorHandles(dict(parts.searcher_of), dict(parts.builders), dict(parts.devices)),
            ),
            ActorHandles(),
        )
        await self._scheduler.started()
        self._running = asyncio.ensure_future(self._scheduler.run())
        began = time.monotonic()
        beats = Heartbeats(self._members(parts.build_host), _log_notice, _log_restart, lambda: time.monotonic() - began)
        self._watching = asyncio.ensure_future(beats.watch())

    def _made(self, role: str, cls: type, concurrency: int, *arguments: Any) -> Any:
        here = self._cluster.here()
        actor = remote_actor(cls, concurrency=concurrency, scheduling_strategy=here).remote(*arguments)
        self._roles.setdefault(role, []).append(actor)
        return actor

    async def _start_parts(self) -> SimulatedParts:
        """Start all parts but the scheduler."""
        fleet = self._fleet
        tasks = _tasks(fleet.classes)
        roster = TaskRegistry(self._folder / "tasks")
        roster.open()
        for entry in tasks:
            roster.add(entry)
        self._records = RecorderClient(
            self._made("recorder", Recorder, 1000, str(self._folder / _STORE_NAME), {"network": "simulated"})
        )
        await self._records.put_tasks([entry.task for entry in tasks])
        count = searchers(fleet.devices)
        number = {entry.task.id: at // len(fleet.classes) % count for at, entry in enumerate(tasks)}
        searching = []
        for at in range(1 + max(number.values())):
            others = frozenset(task_id for task_id, dealt_to in number.items() if dealt_to != at)
            actor = self._made("searchers", Searcher, 64, roster, RANDOM, 0, ByValue(self._records), None, None, others)
            searching.append(SearcherClient(actor))
        self._searchers = len(searching)
        await asyncio.gather(*(each.start() for each in searching))
        self._hosts = self._made(SIMULATED[0], SimulatedDevices, 2 * fleet.devices + 8, _RUN_ID, fleet.faults)
        build_host = self._made(SIMULATED[1], SimulatedBuilders, 64, fleet.build_secs)
        return SimulatedParts(
            tasks=tasks,
            number=number,
            searcher_of={task_id: searching[at] for task_id, at in number.items()},
            build_host=build_host,
            builders=builder_clients(dict.fromkeys(range(fleet.builders), build_host)),
            devices={name: SimulatedHandle(self._hosts, name, secs) for name, (_, secs) in fleet.handles.items()},
        )

    def _members(self, build_host: Any) -> list[WatchedProcess]:
        """The processes for the heartbeats, as in a real run: one for all builders and one for each device, though one
        process stands in for all devices."""
        stand_ins = {"the builders": build_host, **{f"device {name}": self._hosts for name in self._fleet.handles}}
        real = {
            f"{role} {number}": actor
            for role, actors in self._roles.items()
            for number, actor in enumerate(actors)
            if role not in SIMULATED
        }
        return [
            *(
                WatchedProcess(name, _role_of(name), ActorClient(actor).beat, partial(_end, actor), True)
                for name, actor in real.items()
            ),
            *(
                WatchedProcess(name, _role_of(name), ActorClient(actor).beat, partial(_end, actor), is_one_of_many=True)
                for name, actor in stand_ins.items()
            ),
        ]

    async def use(self, secs: float) -> FleetUsage:
        """Measure the use of the fleet in the next ``secs``. Raises the error that ends the run."""
        before, busy, used_before = await self._seen()
        began = time.monotonic()
        await self._wait(secs)
        later, busy_later, used_later = await self._seen()
        span = time.monotonic() - began
        progress = await self._scheduler.progress()
        by_class: defaultdict[str, float] = defaultdict(float)
        for name, (device_class, _) in self._fleet.handles.items():
            by_class[device_class] += (busy_later.get(name, 0.0) - busy.get(name, 0.0)) / span
        members = Counter(device_class for device_class, _ in self._fleet.handles.values())
        return FleetUsage(
            devices=self._fleet.devices,
            builders=self._fleet.builders,
            searchers=self._searchers,
            trials_a_second=(later - before) / span,
            demand=self._fleet.demand,
            busy=sum(by_class.values()) / self._fleet.devices,
            busy_by_class={name: by_class[name] / members[name] for name in members},
            bound=progress.bounds,
            roles=since(used_before, used_later, later - before),
            secs=span,
        )

    async def warm_up(self, secs: float) -> None:
        """Tune for ``secs`` without measuring the use of the fleet."""
        await self._wait(secs)

    async def stop(self) -> None:
        """End all processes of the run."""
        for task in (self._running, self._watching):
            if task is not None:
                task.cancel()
        if self._cluster.is_lost:  # its processes have ended with it
            return
        for actors in self._roles.values():
            for actor in actors:
                _end(actor)

    async def _wait(self, secs: float) -> None:
        assert self._running is not None
        done, _ = await asyncio.wait([self._running], timeout=secs)
        if done:
            self._running.result()

    async def _seen(self) -> tuple[int, dict[str, float], dict[str, Use]]:
        """Number of records, seconds in which each device has measured, and use of each role."""
        busy = await ask(self._hosts.busy.remote(), _ANSWER_SECS, "what simulated devices did")
        return await self._records.last_seq(), busy, await used(self._roles, self._cluster)


def _log_notice(text: str, well: bool) -> None:
    _LOG.log(logging.INFO if well else logging.WARNING, "%s", text)


def _log_restart(event: ProcessRestarted) -> None:
    _LOG.warning("%s", event.text)


def _role_of(name: str) -> ProcessRole:
    """The role that a process is named after."""
    return next(role for role in ProcessRole if role.value in name)


def _end(actor: Any) -> None:
    """End the actor's process for good."""
    import ray

    with contextlib.suppress(Exception):  # the actor may have ended already
        ray.kill(actor, no_restart=True)


def _tasks(classes: tuple[str, ...]) -> list[SearchTask]:
    """Tasks of every class with one undescribed sketch."""
    tiles = (Tile(_EXTENT, 4, 64), Tile(_EXTENT, 3, 64))
    return [
        SearchTask(
            Task(
                Workload(f"task-{at}-{name}", f"task-{at}", 1e9, "{}"), DeviceClass(name, '{"kind":"llvm"}'), 1 + at % 4
            ),
            (Sketch(0, "toy", f"task {at} {name}", tiles, (), "a toy"),),
            SIMULATED_CPU,
        )
        for at in range(_TASKS)
        for name in classes
    ]
