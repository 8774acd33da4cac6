"""A tuning session: starts the actors, wires them, and takes them down again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from actors.builder import Builder
from actors.calls import ActorLostError, ActorTimeoutError, Shared, ask, first_line, remote_actor
from actors.cluster import Cluster
from actors.device import device_actor, opened_device, told_with_its_place
from actors.learner import Learner
from actors.recorder import Recorder
from actors.scheduler import Scheduler, SchedulerPlan
from actors.searcher import Searcher
from devices.builds.builder import BuildWorker
from devices.simulated.recorded import RecordedBuilder
from fleet_tune.config.fleet_file import DeviceConfig, FleetConfig
from fleet_tune.device_state import Admin
from fleet_tune.domain import Fingerprint, Record, StopRule
from fleet_tune.errors import (
    ClusterError,
    DeviceUnreachableError,
    FleetFileError,
    FleetOrdersError,
    FleetTuneError,
)
from fleet_tune.records.orders import FleetOrders, orders_path
from fleet_tune.results import Progress
from fleet_tune.search_task import SearchTask

_LOG = logging.getLogger(__name__)
_START_SECS = 120.0
_FOLLOW_SECS = 1.0
# A stopped session waits this long for the measurement under way; the whole stop must take under five seconds.
_STOP_SECS = 2.0


@dataclass(frozen=True)
class SessionPlan:
    """What a session tunes, and within which limits (None: no limit): ``trial_limit`` of all tasks together,
    ``task_limit`` of each. ``rule``: when a measurement ends; the fleet file may add a warm-up and a flush."""

    run_id: str
    method: str
    seed: int
    tasks: tuple[SearchTask, ...]
    trial_limit: int | None
    time_budget_secs: float | None
    task_limit: int | None = None
    rule: StopRule = field(default_factory=StopRule)


class Session:
    """The actors of one run. Use: ``start_hosts`` (devices and builders), ``start_tuning``, ``records``, ``close``.

    ``artifacts``: folder of kernels that earlier runs built, None for none.
    """

    def __init__(self, cluster: Cluster, fleet: FleetConfig, run_id: str, artifacts: Path | None = None) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._run_id = run_id
        self._artifacts = artifacts
        # A device of this host shares its cores with the builders and searchers: they pause while it measures.
        shared = any(is_local(device) for device in fleet.devices)
        self._window = str(Path(tempfile.gettempdir()) / f"fleet-tune-quiet-{os.getuid()}") if shared else None
        self._devices: dict[str, Any] = {}
        self._late: dict[str, str] = {}  # classes of the devices that join later
        self._builders: list[Any] = []
        self._actors: list[Any] = []
        self._recorder: Any = None
        self._scheduler: Any = None
        self._running: asyncio.Future[Any] | None = None
        self._abandoned = False
        self._closed = False
        self._tasks: Shared[tuple[SearchTask, ...]] | None = None

    async def start_hosts(self) -> dict[str, Fingerprint]:
        """Start builders and devices; returns the fingerprint of each device that answers.

        A device that does not answer joins later, if the fleet file says its class and another device of that class
        answers. One that people have taken out of use is not asked; it joins when they resume it, if its class is
        known in that way.
        Raises :class:`fleet_tune.errors.FleetFileError` naming a device that does not answer or has a wrong target.
        """
        here = self._cluster.here()
        workers = self._fleet.build.workers or max(1, len(os.sched_getaffinity(0)))
        builder = remote_actor(Builder, restarts=-1, scheduling_strategy=here if self._window else "SPREAD")
        # Where datasets answer for all devices, they answer for the builds too.
        datasets = self._fleet.datasets
        make_worker = (
            partial(RecordedBuilder, *datasets) if datasets else partial(BuildWorker, self._artifacts, workers)
        )
        self._builders = [builder.remote(make_worker, self._window) for _ in range(workers)]
        for device in self._fleet.devices:
            actor = device_actor(scheduling_strategy=here if is_local(device) else "DEFAULT")
            self._devices[device.name] = actor.remote(
                device.name,
                partial(opened_device, device, self._fleet.measure.realtime),
                self._run_id,
                self._window if is_local(device) else None,
                self._fleet.measure.max_drift,
            )
        self._actors += [*self._builders, *self._devices.values()]
        out_of_use = await self._out_of_use()
        asked = [name for name in self._devices if name not in out_of_use]
        probing = {name: self._devices[name].fingerprint.remote() for name in asked}
        prints: dict[str, Fingerprint] = {}
        absent: dict[str, FleetTuneError] = {}
        for name, reference in probing.items():
            try:
                with told_with_its_place(self._fleet, name, unreachable=False):
                    prints[name] = await ask(reference, _START_SECS, f"device {name}")
            except (DeviceUnreachableError, ActorTimeoutError, ActorLostError) as error:
                absent[name] = error
        self._let_join_later(prints, absent, out_of_use)
        for one in self._builders:
            one.warm_up.remote()
        return prints

    async def _out_of_use(self) -> set[str]:
        """The devices that people have taken out of use."""
        if self._fleet.source is None:
            return set()
        orders = FleetOrders(orders_path(self._fleet.source.path))
        latest = await asyncio.to_thread(orders.latest)
        return {name for name, order in latest.items() if order.admin is not Admin.ACTIVE} & self._devices.keys()

    def _let_join_later(
        self, prints: Mapping[str, Fingerprint], absent: Mapping[str, FleetTuneError], out_of_use: set[str]
    ) -> None:
        """Decide about the devices without a fingerprint; see :meth:`start_hosts`."""
        if not prints and not absent:
            assert self._fleet.source is not None
            raise FleetFileError(
                f"every device of {self._fleet.source.path} is out of use: {', '.join(sorted(out_of_use))}",
                "bring one back with 'fleet-tune device resume'",
            )
        classes = {found.device_class.name for found in prints.values()}
        for config in self._fleet.devices:
            if config.name in prints:
                continue
            if config.device_class in classes:
                self._late[config.name] = config.device_class
                _LOG.warning("device %s is not there: it joins when it answers and is in use", config.name)
            elif config.name in out_of_use:
                del self._devices[config.name]
                _LOG.warning("device %s is out of use, and nothing is known of its class: left out", config.name)
            else:
                with told_with_its_place(self._fleet, config.name):
                    raise absent[config.name]

    async def start_tuning(
        self, plan: SessionPlan, store: Path, meta: Mapping[str, str], device_classes: Mapping[str, str]
    ) -> None:
        """Start recorder, learner, searcher and scheduler; :meth:`begin` lets them tune.

        ``device_classes``: the name of the class of each device that answers.
        """
        here = self._cluster.here()
        self._recorder = remote_actor(Recorder, concurrency=256, scheduling_strategy=here).remote(str(store), meta)
        await ask(self._recorder.put_tasks.remote([entry.task for entry in plan.tasks]), _START_SECS, "recorder")
        models = store.parent.absolute() / "models"
        self._tasks = Shared.put(tuple(entry.without_module() for entry in plan.tasks), models / "session")
        # Handles travel as values: as arguments of an actor that may restart, Ray warns of each on the terminal.
        recorder = Shared.put(self._recorder)
        learner = remote_actor(Learner, restarts=-1, concurrency=64, scheduling_strategy=here).remote(
            self._tasks, plan.method, plan.seed, recorder, self._window, str(models)
        )
        searcher = remote_actor(Searcher, restarts=-1, concurrency=64, scheduling_strategy=here).remote(
            self._tasks, plan.method, plan.seed, recorder, Shared.put(learner), self._window
        )
        await ask(searcher.start.remote(), _START_SECS, "searcher")
        learner.start.remote()
        schedule = SchedulerPlan(
            run_id=plan.run_id,
            method=plan.method,
            tasks=tuple(entry.task for entry in plan.tasks),
            sketch_rules={entry.task.id: tuple(sketch.rule for sketch in entry.sketches) for entry in plan.tasks},
            floor_secs={entry.task.id: entry.task.workload.flop / entry.abstraction.peak_flops for entry in plan.tasks},
            trial_limit=plan.trial_limit,
            time_budget_secs=plan.time_budget_secs,
            build_timeout_secs=self._fleet.build.timeout_secs,
            seed=plan.seed,
            rule=self._fleet.measure.applied_to(plan.rule),
            task_limit=plan.task_limit,
            check_every_secs=self._fleet.measure.check_every_secs,
            orders=await self._noted(store),
        )
        self._scheduler = remote_actor(Scheduler, concurrency=64, scheduling_strategy=here).remote(
            schedule,
            self._recorder,
            {entry.task.id: searcher for entry in plan.tasks},
            self._builders,
            {name: ({**device_classes, **self._late}[name], device) for name, device in self._devices.items()},
        )
        self._actors += [learner, searcher, self._scheduler]
        await ask(self._scheduler.progress.remote(), _START_SECS, "scheduler")

    async def _noted(self, store: Path) -> Path | None:
        """Where the orders for the fleet's devices are, after noting there that this run uses the fleet; None for a
        fleet without a file. A fleet file in a folder that cannot be written is no reason not to tune."""
        if self._fleet.source is None:
            return None
        path = orders_path(self._fleet.source.path)
        try:
            await asyncio.to_thread(FleetOrders(path).note_run, self._run_id, store)
        except FleetOrdersError as error:
            _LOG.warning("%s", error)
        return path

    def begin(self) -> None:
        """Tune in the background from now on."""
        self._running = asyncio.ensure_future(_result(self._scheduler.run.remote()))

    async def records(self, cursor: int = 0) -> AsyncIterator[Record | None]:
        """Acknowledged records with ``seq > cursor`` as they come, None whenever a second passes without one; ends
        when tuning has ended and all are read. Raises what ended tuning early."""
        assert self._running is not None
        while True:
            over = self._running.done() or self._abandoned
            wait_secs = 0.0 if over else _FOLLOW_SECS
            with _lost_means_resume():
                records: Sequence[Record] = await ask(
                    self._recorder.follow.remote(cursor, wait_secs), 60.0, "follow the records"
                )
            for record in records:
                yield record
                cursor = record.seq
            if over and not records:
                break
            if not records:
                yield None
        if self._running.done():
            self._running.result()

    async def progress(self) -> Progress:
        progress: Progress = await ask(self._scheduler.progress.remote(), 10.0, "progress")
        return progress

    async def last_seq(self) -> int:
        seq: int = await ask(self._recorder.last_seq.remote(), 30.0, "recorder")
        return seq

    async def stop(self) -> None:
        """Stop granting; what is being measured is stored if it ends in time."""
        if self._scheduler is None or self._running is None or self._running.done():
            return
        with contextlib.suppress(ActorLostError, ActorTimeoutError):
            await ask(self._scheduler.stop.remote(), 1.0, "stop")
        await asyncio.wait([self._running], timeout=_STOP_SECS)
        self._abandoned = True

    async def close(self) -> None:
        """Close the store and end every actor. Acknowledged records are already durable: a deadline loses none."""
        import ray

        if self._closed:
            return
        self._closed = True
        if self._recorder is not None:
            with contextlib.suppress(FleetTuneError):
                await ask(self._recorder.close.remote(), 1.0, "close the record store")
            self._actors.append(self._recorder)
        hosts = [*self._builders, *self._devices.values()]
        closing = (ask(actor.close.remote(), 0.5, "close") for actor in hosts)
        # A host that is busy is ended below; its child processes end with it.
        await asyncio.gather(*closing, return_exceptions=True)
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)
        if self._tasks is not None:
            self._tasks.close()


def is_local(device: DeviceConfig) -> bool:
    """Whether the device shares this host's cores. One at a port of this host does, unless it has another target than
    this machine's own: then the port leads through a tunnel."""
    address = device.connect.removeprefix("tracker://")
    loopback = address.rpartition(":")[0] in ("127.0.0.1", "localhost")
    return device.connect == "local" or (loopback and device.target == "native")


async def _result(reference: Any) -> None:
    """The end of tuning. No deadline of its own: it lasts as long as the budget, and ``stop`` bounds its end."""
    with _lost_means_resume():
        await ask(reference, None, "the scheduler")


@contextlib.contextmanager
def _lost_means_resume() -> Iterator[None]:
    """A session without its scheduler or recorder cannot go on; its records are safe."""
    try:
        yield
    except (ActorLostError, ActorTimeoutError) as error:
        raise ClusterError(
            f"a process of the session ended: {first_line(error)}", "run the same command again: it resumes"
        ) from error
