"""A tuning session: starts the actors, wires them, and takes them down again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from actors.clients.builder import BuilderClient
from actors.clients.calls import LOST, WINDOW_WAIT_SECS, Shared, ask, first_line, remote_actor
from actors.clients.device import DeviceClient, fingerprint_of
from actors.clients.learner import LearnerClient
from actors.clients.recorder import RecorderClient
from actors.clients.scheduler import SchedulerClient
from actors.clients.searcher import SearcherClient
from actors.clusters.cluster import Cluster
from actors.processes.builder import Worker, builder_actor
from actors.processes.device import device_actor
from actors.processes.learner import Learner
from actors.processes.recorder import Recorder
from actors.processes.roster import Roster
from actors.processes.searcher import Searcher
from actors.scheduling.heartbeats import Heartbeats, Member
from actors.scheduling.scheduler import Scheduler, SchedulerPlan
from actors.scheduling.succession import Scheduling
from devices.builds.builder import BuildWorker
from devices.host.quiet import QuietWindow
from devices.host.versions import Host, check_same_tvm, this_host
from devices.opening import opened_device, told_with_its_place
from devices.protocol import Device
from devices.simulated.recorded import RecordedBuilder
from fleet_tune.config.fleet_file import DeviceConfig, FleetConfig
from fleet_tune.device_state import Admin
from fleet_tune.domain import Fingerprint, Limits, Record, StopRule
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
from policies.runs.pace import searchers
from policies.runs.plan import PlannedTask, RunPlan

_LOG = logging.getLogger(__name__)
_FOLLOW_SECS = 1.0
_HOST_SECS = 120.0  # processes are still being started
# A stopped session waits this long for the measurement under way; the whole stop must take under five seconds.
_STOP_SECS = 2.0


@dataclass(frozen=True)
class SessionPlan:
    """What a session tunes, and when it ends. ``tasks``: all of the network, which are tuned from when they
    :meth:`TuningSession.join`; their sketches need not be known before. ``rule``: when a measurement ends; the fleet
    file may add a warm-up and a flush. ``settled``: by the id of a task, why it gets no trial at all."""

    run_id: str
    method: str
    seed: int
    tasks: tuple[SearchTask, ...]
    limits: Limits
    rule: StopRule = field(default_factory=StopRule)
    settled: Mapping[str, str] = field(default_factory=dict)


class TuningSession:
    """The actors of one run. Use: ``start_hosts`` (devices and builders), ``start_tuning``, ``begin``, ``join`` for
    each task as it is described, ``records``, ``close``.

    ``artifacts``: folder of kernels that earlier runs built, None for none. ``open_device``: opens the device of an
    entry of the fleet file; whether it may time kernels at real-time priority. ``make_worker``: makes what a builder
    builds with, None for what the fleet needs.
    """

    def __init__(
        self,
        cluster: Cluster,
        fleet: FleetConfig,
        run_id: str,
        artifacts: Path | None = None,
        open_device: Callable[[DeviceConfig, bool], contextlib.AbstractContextManager[Device]] = opened_device,
        make_worker: Callable[[], Worker] | None = None,
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._run_id = run_id
        self._artifacts = artifacts
        self._open_device = open_device
        self._make_worker = make_worker
        # A device of this host shares its cores with the builders and searchers: they pause while it measures.
        shared = any(is_local(device) for device in fleet.devices)
        self._window = str(Path(tempfile.gettempdir()) / f"fleet-tune-quiet-{os.getuid()}") if shared else None
        self._devices: dict[str, Any] = {}
        self._late: dict[str, str] = {}  # classes of the devices that join later, empty where it is not known
        self._notices: list[str] = []
        self._builders: list[Any] = []
        self._actors: list[Any] = []
        self._recorder: RecorderClient | None = None
        self._scheduling: Scheduling | None = None
        self._members: list[Member] = []
        self._heartbeats: Heartbeats | None = None
        self._watching: asyncio.Future[None] | None = None
        self._running: asyncio.Future[None] | None = None
        self._abandoned = False
        self._closed = False
        self._roster: Roster | None = None

    @property
    def window(self) -> QuietWindow | None:
        """What whoever works on this host has to keep to; None where no device shares it."""
        return QuietWindow(self._window, WINDOW_WAIT_SECS) if self._window else None

    async def start_hosts(self) -> dict[str, Fingerprint]:
        """Start builders and devices; returns the fingerprint of each device that answers.

        A device that does not answer joins when it does, if it is of the class of one that answers. One that people
        have taken out of use is not asked; it joins when they resume it, if the fleet file says its class and another
        device of that class answers.
        Raises :class:`fleet_tune.errors.FleetFileError` where none answers, naming one, or one has a wrong target or
        another version of TVM, and VersionsDifferError for another machine of the cluster that has.
        """
        here = self._cluster.here()
        workers = self._fleet.build.workers or max(1, len(os.sched_getaffinity(0)))
        builder = builder_actor(scheduling_strategy=here if self._window else "SPREAD")
        # Where datasets answer for all devices, they answer for the builds too.
        datasets = self._fleet.datasets
        make_worker = self._make_worker or (
            partial(RecordedBuilder, *datasets)
            if datasets
            else partial(BuildWorker, self._artifacts, workers, window=self.window)
        )
        self._builders = [builder.remote(make_worker) for _ in range(workers)]
        for device in self._fleet.devices:
            actor = device_actor(scheduling_strategy=here if is_local(device) else "DEFAULT")
            self._devices[device.name] = actor.remote(
                device.name,
                partial(self._open_device, device, self._fleet.measure.realtime),
                self._run_id,
                self._window if is_local(device) else None,
            )
        self._actors += [*self._builders, *self._devices.values()]
        out_of_use = await self._out_of_use()
        asked = [name for name in self._devices if name not in out_of_use]
        probing = (fingerprint_of(self._devices[name], name) for name in asked)
        answers = await asyncio.gather(*probing, return_exceptions=True)
        await self._check_versions(asked)
        prints: dict[str, Fingerprint] = {}
        absent: dict[str, DeviceUnreachableError] = {}
        for name, answer in zip(asked, answers, strict=True):
            try:
                with told_with_its_place(self._fleet, name, unreachable=False):
                    if isinstance(answer, BaseException):
                        raise answer
                    prints[name] = answer
            except DeviceUnreachableError as error:
                absent[name] = error
            except LOST as error:
                absent[name] = DeviceUnreachableError(name, first_line(error))
        self._let_join_later(prints, absent, out_of_use)
        for one in self._builders:
            BuilderClient(one).warm_up()
        return prints

    async def _check_versions(self, devices: Iterable[str]) -> None:
        """Raises VersionsDifferError where a process of the session has another TVM than this one. Those that do not
        answer are missed elsewhere."""
        parts = {f"builder {number}": builder for number, builder in enumerate(self._builders)}
        parts |= {f"the process of device {name}": self._devices[name] for name in devices}
        asking = (ask(actor.host.remote(), _HOST_SECS, f"the host of {what}") for what, actor in parts.items())
        hosts = await asyncio.gather(*asking, return_exceptions=True)
        for what, host in zip(parts, hosts, strict=True):
            if isinstance(host, Host):
                check_same_tvm(this_host(), what, host)

    async def _out_of_use(self) -> set[str]:
        """The devices that people have taken out of use."""
        if self._fleet.source is None:
            return set()
        orders = FleetOrders(orders_path(self._fleet.source.path))
        latest = await asyncio.to_thread(orders.latest)
        return {name for name, order in latest.items() if order.admin is not Admin.ACTIVE} & self._devices.keys()

    def _let_join_later(
        self, prints: Mapping[str, Fingerprint], absent: Mapping[str, DeviceUnreachableError], out_of_use: set[str]
    ) -> None:
        """Decide about the devices without a fingerprint; see :meth:`start_hosts`."""
        if not prints and not absent:
            assert self._fleet.source is not None
            raise FleetFileError(
                f"every device of {self._fleet.source.path} is out of use: {', '.join(sorted(out_of_use))}",
                "bring one back with 'fleet-tune device resume'",
            )
        if not prints:
            name, error = next(iter(absent.items()))
            with told_with_its_place(self._fleet, name):
                raise error
        classes = {fingerprint.device_class.name for fingerprint in prints.values()}
        for config in self._fleet.devices:
            name = config.name
            if name in prints:
                continue
            known = config.device_class or ""
            known = known if known in classes else ""
            if name in absent:
                self._notices.append(f"{absent[name]}: the run begins without it, and takes it when it answers")
            elif known:
                self._notices.append(f"device {name} is out of use: it joins when it is resumed")
            else:
                del self._devices[name]
                self._notices.append(f"device {name} is out of use, and nothing is known of its class: it is left out")
                continue
            self._late[name] = known

    async def start_tuning(
        self, plan: SessionPlan, store: Path, meta: Mapping[str, str], device_classes: Mapping[str, str]
    ) -> None:
        """Start recorder, learner, searcher and scheduler; :meth:`begin` lets them tune, and from then on every process
        of the session that is lost or hangs is replaced.

        ``device_classes``: the name of the class of each device that answers.
        """
        with _lost_means_resume():
            await self._start_tuning(plan, store, meta, device_classes)

    async def _start_tuning(
        self, plan: SessionPlan, store: Path, meta: Mapping[str, str], device_classes: Mapping[str, str]
    ) -> None:
        here = self._cluster.here()
        actor = remote_actor(Recorder, restarts=-1, concurrency=256, scheduling_strategy=here).remote(str(store), meta)
        self._actors.append(actor)
        self._recorder = RecorderClient(actor)
        await self._recorder.put_tasks([entry.task for entry in plan.tasks])
        models = store.parent.absolute() / "models"
        self._roster = Roster(self._cluster.folder / "tasks")
        await asyncio.to_thread(self._roster.open)
        # Handles travel as values: as arguments of an actor that may restart, Ray warns of each on the terminal.
        recorder = Shared(self._recorder)
        learner = remote_actor(Learner, restarts=-1, concurrency=64, scheduling_strategy=here).remote(
            self._roster, plan.method, plan.seed, recorder, self._window, str(models)
        )
        self._actors.append(learner)
        learning = LearnerClient(learner, self.window)
        dealt = _dealt_out(plan.tasks, min(searchers(len(self._devices)), len(os.sched_getaffinity(0))))
        searching = []
        for number in range(1 + max(dealt.values(), default=0)):
            mine = frozenset(task_id for task_id, dealt_to in dealt.items() if dealt_to == number)
            actor = remote_actor(Searcher, restarts=-1, concurrency=64, scheduling_strategy=here).remote(
                self._roster,
                plan.method,
                plan.seed,
                recorder,
                Shared(learning),
                self._window,
                mine,
                self._fleet.build.timeout_secs,
            )
            self._actors.append(actor)
            searching.append(SearcherClient(actor, self.window))
        await asyncio.gather(*(search.start() for search in searching))
        learning.start()
        classes = {**device_classes, **self._late}
        # A class without a task has no work: its devices are left alone.
        targets = {entry.task.device_class.name: entry.task.device_class.target for entry in plan.tasks}
        devices = {
            name: DeviceClient(device, targets[classes[name]], self._recorder)
            for name, device in self._devices.items()
            if classes[name] in targets
        }
        run = RunPlan(
            run_id=plan.run_id,
            tasks=tuple(
                _planned(entry, dealt[entry.task.id], plan.settled.get(entry.task.id, "")) for entry in plan.tasks
            ),
            devices={name: classes[name] for name in self._devices},
            builders=len(self._builders),
            limits=plan.limits,
            rule=self._fleet.measure.applied_to(plan.rule),
            check_every_secs=self._fleet.measure.check_every_secs,
            window_wait_secs=WINDOW_WAIT_SECS,
            build_timeout_secs=self._fleet.build.timeout_secs,
        )
        builders = [BuilderClient(builder) for builder in self._builders]
        others = {name: DeviceClient(device, "", self._recorder) for name, device in self._devices.items()}
        schedule = SchedulerPlan(run, plan.method, plan.seed, await self._noted(store), tuple(self._notices))

        def scheduler_for(run: RunPlan) -> SchedulerClient:
            actor = remote_actor(Scheduler, concurrency=64, scheduling_strategy=here).remote(
                dataclasses.replace(schedule, run=run),
                self._recorder,
                {task_id: searching[number] for task_id, number in dealt.items()},
                builders,
                devices,
                learning,
                {name: others[name] for name, known in self._late.items() if not known},
            )
            self._actors.append(actor)
            return SchedulerClient(actor)

        self._scheduling = Scheduling(run, scheduler_for, self.last_seq, self._cluster)
        clock = time.monotonic if self.window is None else self.window.clock
        self._members = [
            Member("the scheduler", self._scheduling.beat, self._scheduling.end),
            Member("the recorder", self._recorder.beat, self._recorder.restart),
            Member("the learner", learning.beat, learning.restart, True, clock),
            *(
                Member(f"searcher {number}", each.beat, each.restart, True, clock)
                for number, each in enumerate(searching)
            ),
            *(
                Member(f"builder {number}", each.beat, each.restart, is_one_of_many=True)
                for number, each in enumerate(builders)
            ),
            *(Member(f"device {name}", each.beat, each.restart, is_one_of_many=True) for name, each in others.items()),
        ]
        await self._scheduling.started()

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
        assert self._scheduling is not None
        scheduling = self._scheduling
        self._running = asyncio.ensure_future(scheduling.run())
        self._heartbeats = Heartbeats(self._members, scheduling.notice, lambda: scheduling.now)
        self._watching = asyncio.ensure_future(self._heartbeats.watch())

    async def join(self, entry: SearchTask) -> None:
        """A task of the plan is described: it is tuned from now on."""
        assert self._scheduling is not None
        assert self._roster is not None
        await asyncio.to_thread(self._roster.add, entry.without_module())
        await self._scheduling.described(entry.task.id, tuple(sketch.rule for sketch in entry.sketches), entry.enough)

    async def leave_out(self, task_id: str) -> None:
        """A task of the plan has no sketch: it is not waited for."""
        assert self._scheduling is not None
        await self._scheduling.undescribable(task_id)

    async def records(self, cursor: int = 0, traces: bool = False) -> AsyncIterator[Record | None]:
        """Acknowledged records with ``seq > cursor`` as they come, with their ``traces`` or without, None whenever a
        second passes without one; ends when tuning has ended and all are read. Raises what ended tuning early."""
        assert self._running is not None
        assert self._recorder is not None
        while True:
            over = self._running.done() or self._abandoned
            wait_secs = 0.0 if over else _FOLLOW_SECS
            records = await self._recorder.follow(cursor, wait_secs, traces)
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
        """A snapshot, also while the scheduler is lost or hangs: then the last one."""
        assert self._scheduling is not None
        silent = {} if self._heartbeats is None else self._heartbeats.silent
        progress = await self._scheduling.progress(is_silent="the scheduler" in silent)
        return dataclasses.replace(progress, silent=silent) if silent else progress

    async def last_seq(self) -> int:
        assert self._recorder is not None
        return await self._recorder.last_seq()

    async def stop(self) -> None:
        """Stop granting; what is being measured is stored if it ends in time."""
        if self._scheduling is None or self._running is None or self._running.done():
            return
        await self._scheduling.stop()
        await asyncio.wait([self._running], timeout=_STOP_SECS)
        self._abandoned = True

    async def close(self) -> None:
        """Close the store and end every actor. Acknowledged records are already durable: a deadline loses none."""
        import ray

        if self._closed:
            return
        self._closed = True
        for task in (self._running, self._watching):
            if task is not None:
                task.cancel()  # nobody waits any more for the scheduler, which is ended below
        if self._cluster.is_lost:
            return
        if self._recorder is not None:
            with contextlib.suppress(FleetTuneError):
                await self._recorder.close()
        hosts = [*self._builders, *self._devices.values()]
        closing = (ask(actor.close.remote(), 0.5, "close") for actor in hosts)
        # A host that is busy is ended below; its child processes end with it.
        await asyncio.gather(*closing, return_exceptions=True)
        for actor in reversed(self._actors):  # who calls others first
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)
        if self._roster is not None:
            await asyncio.to_thread(self._roster.close)


def is_local(device: DeviceConfig) -> bool:
    """Whether the device shares this host's cores. One at a port of this host does, unless it has another target than
    this machine's own: then the port leads through a tunnel."""
    address = device.connect.removeprefix("tracker://")
    loopback = address.rpartition(":")[0] in ("127.0.0.1", "localhost")
    return device.connect == "local" or (loopback and device.target == "native")


def _planned(entry: SearchTask, searcher: int, settled: str) -> PlannedTask:
    oracle_secs = entry.abstraction.unscheduled_secs(entry.task.workload.flop)
    return PlannedTask(entry.task, None, entry.floor_secs, oracle_secs, searcher, settled)


def _dealt_out(tasks: Sequence[SearchTask], most: int) -> dict[str, int]:
    """The number of the searcher of each task id: at most so many, each with as many tasks of every device class."""
    counts: Counter[str] = Counter()
    dealt: dict[str, int] = {}
    for entry in tasks:
        device_class = entry.task.device_class.name
        dealt[entry.task.id] = counts[device_class] % most
        counts[device_class] += 1
    return dealt


@contextlib.contextmanager
def _lost_means_resume() -> Iterator[None]:
    """A session that cannot start one of its processes cannot go on; its records are safe."""
    try:
        yield
    except LOST as error:
        raise ClusterError(
            f"a process of the session ended: {first_line(error)}", "run the same command again: it resumes"
        ) from error
