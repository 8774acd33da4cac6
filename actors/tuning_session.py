"""A tuning session: starts the actors, wires them, and takes them down again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from actors.builder_watch import BuilderWatch, builder_members, by_machine
from actors.clients.builder import BuildersClient, builder_clients
from actors.clients.calls import LOST, WINDOW_WAIT_SECS, Shared, ask, first_line, remote_actor
from actors.clients.device import DeviceClient, fingerprints, fingerprints_in_turn
from actors.clients.learner import LearnerClient
from actors.clients.recorder import RecorderClient, StoreWriter
from actors.clients.scheduler import SchedulerClient
from actors.clients.searcher import SearcherClient
from actors.clusters.cluster import Cluster, lost_means_resume
from actors.device_orders import noted, out_of_use
from actors.device_watch import DeviceWatch, device_member
from actors.fleet_usage import Use, used
from actors.hosts import Hosts, OpenDevice
from actors.processes.builder import Worker
from actors.processes.learner import Learner
from actors.processes.recorder import Recorder
from actors.processes.searcher import Searcher
from actors.processes.task_registry import TaskRegistry
from actors.scheduling.admission import DeviceAdmission
from actors.scheduling.heartbeats import Heartbeats, Member
from actors.scheduling.scheduler import Scheduler, SchedulerPlan
from actors.scheduling.supervisor import SchedulerSupervisor
from actors.session_plan import SessionPlan, dealt_out, planned, run_plan
from actors.turns.run_turns import RunTurns
from devices.device_factory import fleet_file_errors, open_device
from devices.host.quiet_windows.quiet_window import QuietWindow
from devices.host.versions import HostVersions, check_same_tvm, this_host_versions
from fleet_tune.base.config.fleet_file import DeviceConfig, FleetConfig, RecordedConnection
from fleet_tune.base.device_state import DeviceState
from fleet_tune.base.domain import Fingerprint, Record
from fleet_tune.base.errors import (
    DeviceUnreachableError,
    FleetFileError,
    FleetTuneError,
    UserError,
)
from fleet_tune.base.results import Progress
from fleet_tune.base.search_task import SearchTask
from policies.runs.cluster.turns import RunShare
from policies.runs.plan import RunPlan
from policies.runs.spared import last_snapshot
from policies.runs.stages.pace import builders_at_first, searchers
from policies.search.methods import method_named

_FOLLOW_SECS = 1.0
_HOST_SECS = 120.0  # processes are still being started
# A stopped session waits this long for the measurement under way; the whole stop must take under five seconds.
_STOP_SECS = 2.0


class TuningSession:
    """The actors of one run. Use: ``start_hosts`` (devices and builders), ``warm_up`` as soon as it is known that
    something is built, ``start_tuning``, ``begin``, ``join`` for each task as it is described, ``records``, ``close``.
    While it goes on, ``new_class`` says for what else the network should be prepared, and ``add_class`` takes that in.

    ``party``: this run among those that share the cluster, for whose devices it takes turns; None where there are none.
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
        open_device: OpenDevice = open_device,
        make_worker: Callable[[], Worker] | None = None,
        party: RunShare | None = None,
    ) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._run_id = run_id
        self._in_turns = party is not None
        turns = None if party is None else RunTurns(party)
        self._hosts = Hosts(cluster, fleet, run_id, artifacts, open_device, make_worker, turns)
        self._window = str(self._hosts.windows.folder) if self._hosts.windows is not None else None
        self._late: dict[str, str] = {}  # classes of the devices that join later, empty where it is not known
        self._configs = {device.name: device for device in fleet.devices}
        self._classes: dict[str, str] = {}  # of the devices that have said what they are
        self._used: dict[str, DeviceClient] = {}  # those that have work
        self._reception: DeviceAdmission | None = None
        self._searching: list[SearcherClient] = []
        self._searcher_of: dict[str, SearcherClient] = {}  # by task id
        self._notices: list[str] = []
        self._actors: dict[str, list[Any]] = {}  # by role, in the order in which they are started
        self._recorder: RecorderClient | None = None
        self._scheduling: SchedulerSupervisor | None = None
        self._members: list[Member] = []
        self._heartbeats: Heartbeats | None = None
        self._watching: asyncio.Future[None] | None = None
        self._running: asyncio.Future[None] | None = None
        self._abandoned = False
        self._closed = False
        self._roster: TaskRegistry | None = None
        self._builder_watch: BuilderWatch | None = None
        self._device_watch: DeviceWatch | None = None

    @property
    def window(self) -> QuietWindow | None:
        """What whoever works on this host has to keep to; None where no device shares it."""
        return QuietWindow(self._window, WINDOW_WAIT_SECS) if self._window else None

    async def start_hosts(self, tell: Callable[[str], None] = lambda _: None) -> dict[str, Fingerprint]:
        """Start builders and devices; returns the fingerprint of each device that answers. ``tell``: is told what is
        waited for where that takes long, and nothing once it is over.

        A device that does not answer joins when it does. One that people have taken out of use is not asked; it joins
        when they resume it, as one of the class that the fleet file says, if another device of that class answers; else
        it is none of the session until :meth:`add_device`.
        Raises :class:`fleet_tune.base.errors.FleetFileError` where none answers, naming one, or one has a wrong target
        or another version of TVM, and VersionsDifferError for another machine of the cluster that has.
        """
        _ = self.window  # what is wrong with its folder is told before anything starts
        unused = await out_of_use(self._fleet, self._configs)
        await self._hosts.start(self._configs, unused)
        actors = {name: actor for name, actor in self._hosts.devices.items() if name not in unused}
        asked = list(actors)
        answers = await (fingerprints_in_turn(actors, tell) if self._in_turns else fingerprints(actors))
        await self._check_versions(asked, self._hosts.builders)
        prints: dict[str, Fingerprint] = {}
        absent: dict[str, DeviceUnreachableError] = {}
        for name, answer in zip(asked, answers, strict=True):
            try:
                with fleet_file_errors(self._fleet, name, unreachable=False):
                    if isinstance(answer, BaseException):
                        raise answer
                    prints[name] = answer
            except DeviceUnreachableError as error:
                absent[name] = error
            except LOST as error:
                absent[name] = DeviceUnreachableError(name, first_line(error))
        self._let_join_later(prints, absent, unused)
        return prints

    def warm_up(self) -> None:
        """Have the builders start what they build with, as many as the devices may keep busy: something will be built.
        The others do so when there is that much to build."""
        first = sorted(self._hosts.builders)[: builders_at_first(len(self._configs))]
        for actor, count in Counter(self._hosts.builders[number] for number in first).items():
            BuildersClient(actor).warm_up(count)

    def without_trials(
        self,
        plan: SessionPlan,
        records: Sequence[Record],
        states: Mapping[str, DeviceState],
        device_classes: Mapping[str, str],
    ) -> Progress:
        """How a run ends of which every task is settled, so that nobody has to be started: in place of
        :meth:`start_tuning`; only :meth:`close` may follow. ``records``, ``states``: what the run's store has."""
        self._classes = dict(device_classes)
        run = self._run_plan(plan, dict.fromkeys((entry.task.id for entry in plan.tasks), 0))
        bandit = method_named(plan.method).make_task_bandit(plan.seed)
        return last_snapshot(run, bandit, records, states, self._notices)

    def _client(self, name: str, target: str = "") -> DeviceClient:
        """``target``: of the device's class, empty while that is not known."""
        assert self._recorder is not None
        return DeviceClient(self._hosts.devices[name], target, self._recorder, self._in_turns)

    def holding(
        self, names: Collection[str], tell: Callable[[str], None], is_over: Callable[[], bool] = lambda: False
    ) -> contextlib.AbstractContextManager[None]:
        """The turns on these devices for oneself, also after the session is closed; each is waited for in this thread,
        until ``is_over``. ``tell``: as of :meth:`start_hosts`."""
        return self._hosts.holding(self._configs, names, tell, is_over)

    async def _check_versions(self, devices: Iterable[str], builders: Mapping[int, Any] | None = None) -> None:
        """Raises VersionsDifferError where one of these processes has another TVM than this one. Those that do not
        answer are missed elsewhere."""
        parts = by_machine(builders or {})
        parts |= {f"the process of device {name}": self._hosts.devices[name] for name in devices}
        asking = (ask(actor.host.remote(), _HOST_SECS, f"the host of {what}") for what, actor in parts.items())
        hosts = await asyncio.gather(*asking, return_exceptions=True)
        for what, host in zip(parts, hosts, strict=True):
            if isinstance(host, HostVersions):
                check_same_tvm(this_host_versions(), what, host)

    def _let_join_later(
        self, prints: Mapping[str, Fingerprint], absent: Mapping[str, DeviceUnreachableError], unused: set[str]
    ) -> None:
        """Decide about the devices without a fingerprint; see :meth:`start_hosts`."""
        if not prints and not absent:
            assert self._fleet.source is not None
            raise FleetFileError(
                f"every device of {self._fleet.source.path} is out of use: {', '.join(sorted(unused))}",
                "bring one back with 'fleet-tune device resume'",
            )
        if not prints:
            name, error = next(iter(absent.items()))
            with fleet_file_errors(self._fleet, name):
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
            elif known and name in self._hosts.devices:
                self._notices.append(f"device {name} is out of use: it joins when it is resumed")
            else:
                self._hosts.end_device(name)
                self._notices.append(f"device {name} is out of use: it is asked what it is when it is resumed")
                continue
            self._late[name] = known

    async def start_tuning(
        self, plan: SessionPlan, store: Path, meta: Mapping[str, str], device_classes: Mapping[str, str]
    ) -> None:
        """Start recorder, learner, searcher and scheduler; :meth:`begin` lets them tune, and from then on every process
        of the session that is lost or hangs is replaced.

        ``device_classes``: the name of the class of each device that answers.
        """
        with lost_means_resume():
            await self._start_tuning(plan, store, meta, device_classes)

    async def _start_tuning(
        self, plan: SessionPlan, store: Path, meta: Mapping[str, str], device_classes: Mapping[str, str]
    ) -> None:
        here = self._cluster.here()
        actor = remote_actor(Recorder, restarts=-1, concurrency=256, scheduling_strategy=here).remote(str(store), meta)
        self._actors["recorder"] = [actor]
        self._recorder = RecorderClient(actor)
        await self._recorder.put_tasks([entry.task for entry in plan.tasks])
        models = store.parent.absolute() / "models"
        self._roster = TaskRegistry(self._cluster.folder / "tasks")
        await asyncio.to_thread(self._roster.open)
        # Handles travel as values: as arguments of an actor that may restart, Ray warns of each on the terminal.
        recorder = Shared(self._recorder)
        learner = remote_actor(Learner, restarts=-1, concurrency=64, scheduling_strategy=here).remote(
            self._roster, plan.method, plan.seed, recorder, self._window, str(models)
        )
        self._actors["learner"] = [learner]
        learning = LearnerClient(learner, self.window)
        dealt = dealt_out(plan.tasks, min(searchers(len(self._hosts.devices)), len(os.sched_getaffinity(0))))
        searching = self._searching
        for number in range(1 + max(dealt.values(), default=0)):
            others = frozenset(task_id for task_id, dealt_to in dealt.items() if dealt_to != number)
            actor = remote_actor(Searcher, restarts=-1, concurrency=64, scheduling_strategy=here).remote(
                self._roster,
                plan.method,
                plan.seed,
                recorder,
                Shared(learning),
                self._window,
                others,
                self._fleet.build.timeout_secs,
            )
            self._actors.setdefault("searchers", []).append(actor)
            searching.append(SearcherClient(actor, self.window))
        await asyncio.gather(*(search.start() for search in searching))
        learning.start()
        self._searcher_of = {task_id: searching[number] for task_id, number in dealt.items()}
        classes = {**device_classes, **self._late}
        self._classes = dict(device_classes)
        # A class without a task has no work: its devices are left alone.
        targets = {entry.task.device_class.name: entry.task.device_class.target for entry in plan.tasks}
        self._used = {
            name: self._client(name, targets[classes[name]]) for name in self._hosts.devices if classes[name] in targets
        }
        run = self._run_plan(plan, dealt)
        orders = await noted(self._fleet, self._run_id, store)
        schedule = SchedulerPlan(run, plan.method, plan.seed, orders, tuple(self._notices))

        def scheduler_for(run: RunPlan) -> SchedulerClient:
            actor = remote_actor(Scheduler, concurrency=64, scheduling_strategy=here).remote(
                dataclasses.replace(schedule, run=run),
                self._recorder,
                self._searcher_of,
                builder_clients(self._hosts.builders),
                self._used,
                learning,
            )
            self._actors["scheduler"] = [actor]  # those before are gone
            return SchedulerClient(actor)

        self._scheduling = SchedulerSupervisor(run, scheduler_for, self.last_seq, self._cluster)
        clock = time.monotonic if self.window is None else self.window.clock
        self._members = [
            Member("the scheduler", self._scheduling.beat, self._scheduling.end),
            Member("the recorder", self._recorder.beat, self._recorder.restart),
            Member("the learner", learning.beat, learning.restart, True, clock),
            *(
                Member(f"searcher {number}", each.beat, each.restart, True, clock)
                for number, each in enumerate(searching)
            ),
            *builder_members(self._hosts.builders),
            *(device_member(name, self._client(name)) for name in self._hosts.devices),
        ]
        self._reception = DeviceAdmission(self._scheduling, targets, self._take, self._notices)
        await self._scheduling.started()

    def _run_plan(self, plan: SessionPlan, dealt: Mapping[str, int]) -> RunPlan:
        classes = {**self._classes, **self._late}
        devices = {name: classes[name] for name in self._hosts.devices}
        return run_plan(plan, self._fleet, self._configs, devices, len(self._hosts.builders), dealt)

    def _take(self, name: str, device_class: str, device: DeviceClient) -> None:
        """A device that was waited for is used."""
        self._classes[name], self._used[name] = device_class, device

    def _leaves(self, name: str) -> None:
        """A device is used no more."""
        self._used.pop(name, None)
        self._classes.pop(name, None)

    def begin(self) -> None:
        """Tune in the background from now on."""
        assert self._scheduling is not None
        scheduling = self._scheduling
        self._running = asyncio.ensure_future(scheduling.run())
        self._heartbeats = Heartbeats(self._members, scheduling.notice, lambda: scheduling.now)
        self._watching = asyncio.ensure_future(self._heartbeats.watch())
        assert self._reception is not None
        self._builder_watch = BuilderWatch(self._hosts, scheduling, self._heartbeats, partial(self._check_versions, ()))
        self._device_watch = DeviceWatch(
            self._hosts,
            scheduling,
            self._heartbeats,
            self._reception,
            self._configs,
            self._client,
            lambda name: self._check_versions([name]),
            self._leaves,
        )
        for name, known in self._late.items():
            if not known:
                self._reception.expect(name, self._client(name))

    async def join(self, entry: SearchTask) -> None:
        """A task of the plan is described: it is tuned from now on."""
        assert self._scheduling is not None
        assert self._roster is not None
        await asyncio.to_thread(self._roster.add, entry.without_module())
        await self._scheduling.described(entry.task.id, tuple(sketch.rule for sketch in entry.sketches), entry.enough)

    @property
    def devices(self) -> dict[str, DeviceConfig]:
        """The devices of the run by their names, also those that are waited for."""
        hostless = () if self._device_watch is None else self._device_watch.hostless
        return {name: self._configs[name] for name in (*self._hosts.devices, *hostless)}

    async def add_device(self, device: DeviceConfig) -> bool:
        """The fleet has a device more, which is waited for and then used. False while people have it out of use.

        Raises UserError for one that cannot take part in a run that began as this one did.
        """
        assert self._device_watch is not None
        if device.name in await out_of_use(self._fleet, [device.name]):
            return False
        if device.shares_host and self._window is None:
            host = "this machine" if device.via is None else f"host {device.via}"
            problem = f"device {device.name} shares the cores of {host}, which nobody keeps quiet in this run"
            raise UserError(problem, "start the run again: it resumes")
        if self._fleet.datasets or isinstance(device.connection, RecordedConnection):
            problem = f"device {device.name}: recorded devices are those that a run begins with"
            raise UserError(problem, "start the run again: it resumes")
        self._configs[device.name] = device
        await self._device_watch.add(device.name)
        return True

    async def follow_hosts(self) -> None:
        """Machines leave the cluster, with their builders, and their devices are waited for; those that come build too,
        and devices that wait for them join when they answer. To be called every few seconds. Raises ClusterError."""
        if self._cluster.is_embedded:
            return
        assert self._builder_watch is not None
        assert self._device_watch is not None
        nodes = await self._hosts.nodes()
        await self._builder_watch.follow(nodes)
        await self._device_watch.follow(nodes)

    async def remove_device(self, name: str, reason: str) -> None:
        """The fleet has a device less: what it works on is done elsewhere, and nobody is blamed."""
        assert self._device_watch is not None
        await self._device_watch.remove(name, reason)

    def notice(self, text: str, well: bool) -> None:
        """People are to be told this; ``well``: it is nothing bad."""
        assert self._scheduling is not None
        self._scheduling.notice(text, well)

    async def new_class(self) -> tuple[DeviceConfig, Fingerprint]:
        """The next device of a class for which nothing is tuned, once it answers, and what it says of itself.
        :meth:`add_class` or :meth:`refuse_class` must follow."""
        assert self._reception is not None
        name, fingerprint = await self._reception.arrival()
        return self._configs[name], fingerprint

    @property
    def store(self) -> StoreWriter:
        """What a class that joins leaves in the store of the run."""
        assert self._recorder is not None
        return StoreWriter(self._recorder)

    async def add_class(self, tasks: Sequence[SearchTask], settled: Mapping[str, str]) -> bool:
        """Tune these tasks too, all of a class that :meth:`new_class` told of, each from its :meth:`join` on.
        ``settled``: as in the plan. False where the tuning is over: then they are none of the run."""
        assert self._scheduling is not None
        assert self._reception is not None
        assert self._recorder is not None
        await self._recorder.put_tasks([entry.task for entry in tasks])
        name = tasks[0].task.device_class.name
        dealt = dealt_out(tasks, len(self._searching))
        searcher_of = {task_id: self._searching[number] for task_id, number in dealt.items()}
        self._searcher_of |= searcher_of
        late = [
            dataclasses.replace(planned(each, dealt[each.task.id], settled.get(each.task.id, "")), late=True)
            for each in tasks
        ]
        if not await self._scheduling.add_class(name, late, searcher_of):
            return False
        text = f"class {name} joins: {len(tasks)} tasks are tuned for it as they are described"
        self._scheduling.notice(text, True)
        await self._reception.admit(tasks[0].task.device_class)
        return True

    async def refuse_class(self, device_class: str, reason: str) -> None:
        """Nothing can be tuned for a class that :meth:`new_class` told of."""
        assert self._scheduling is not None
        assert self._reception is not None
        await self._scheduling.add_class(device_class, (), {})
        await self._reception.refuse(device_class, reason)

    @property
    def members(self) -> dict[str, tuple[DeviceConfig, ...]]:
        """The devices of each class of the run that have said what they are, and have not left."""
        members: dict[str, tuple[DeviceConfig, ...]] = {}
        for name, device_class in self._classes.items():
            members[device_class] = (*members.get(device_class, ()), self._configs[name])
        return members

    @property
    def helpers(self) -> tuple[int, int]:
        """How many builders and searchers there are."""
        return len(self._hosts.builders), len(self._searching)

    async def used(self) -> dict[str, Use]:
        """What its processes have used by now; see :func:`actors.fleet_usage.used`."""
        hosts = {"builders": list(set(self._hosts.builders.values())), "devices": list(self._hosts.devices.values())}
        return await used({**self._actors, **hosts}, self._cluster)

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
        if self._reception is not None:
            self._reception.close()
        for watch in (self._builder_watch, self._device_watch):
            if watch is not None:
                watch.close()
        for task in (self._running, self._watching):
            if task is not None:
                task.cancel()  # nobody waits any more for the scheduler, which is ended below
        if self._cluster.is_lost:
            return
        if self._recorder is not None:
            with contextlib.suppress(FleetTuneError):
                await self._recorder.close()
        await self._hosts.close()
        for actor in reversed(list(itertools.chain(*self._actors.values()))):  # who calls others first
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)
        self._hosts.end()
        if self._roster is not None:
            await asyncio.to_thread(self._roster.close)
