"""A tuning session: what a run does with its actors while it tunes."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from actors.builder_watch import BuilderWatch, watched_builders
from actors.clients.device import DeviceClient
from actors.clients.recorder import StoreWriter
from actors.clients.scheduler import SchedulerClient
from actors.clusters.cluster import lost_means_resume
from actors.device_orders import note_run, out_of_use
from actors.device_watch import DeviceWatch, watched_device
from actors.fleet_usage import Use, used
from actors.run_actors import RunActors
from actors.run_hosts import RunHosts, members_of
from actors.scheduling.device_admission import DeviceAdmission
from actors.scheduling.heartbeats import Heartbeats, WatchedProcess
from actors.scheduling.scheduler import SchedulerPlan
from actors.scheduling.supervisor import SchedulerSupervisor
from actors.session_plan import SessionPlan, planned, run_plan
from devices.host.quiet_windows.quiet_window import QuietWindow
from fleet_tune.base.config.fleet_file import DeviceConfig, RecordedConnection
from fleet_tune.base.domain import Fingerprint, Record
from fleet_tune.base.errors import UserError
from fleet_tune.base.results import ProcessRole, Progress
from fleet_tune.base.search_task import SearchTask
from policies.runs.events import ClassAdded, SketchesReady, TaskSkipped
from policies.runs.plan import RunPlan

_FOLLOW_SECS = 1.0
# A stopped session waits this long for the measurement under way; the whole stop must take under five seconds.
_STOP_SECS = 2.0
_LOOK_SECS = 1.0
"""Longest wait for the last heartbeats."""


class TuningSession:
    """A run that tunes on its started hosts. Make one with :meth:`start`; nothing is tuned before :meth:`begin`. Each
    task is tuned once :meth:`start_task` was called for it, and :meth:`records` yields the results. :meth:`next_class`
    tells for which class the network should be prepared next, and :meth:`add_class` adds the tasks of that class.
    :meth:`close` ends every actor, including the actors of the hosts."""

    def __init__(
        self,
        hosts: RunHosts,
        actors: RunActors,
        supervisor: SchedulerSupervisor,
        admission: DeviceAdmission,
        heartbeats: Heartbeats,
    ) -> None:
        self._hosts = hosts
        self._actors = actors
        self._supervisor = supervisor
        self._admission = admission
        self._heartbeats = heartbeats
        self._builder_watch = BuilderWatch(hosts.actors, supervisor, heartbeats, actors.handles)
        self._device_watch = DeviceWatch(hosts.actors, supervisor, heartbeats, admission, self._client)
        self._begun = asyncio.Event()
        self._running = asyncio.ensure_future(self._run())
        self._watching = asyncio.ensure_future(self._watch())
        self._abandoned = False
        self._closed = False

    @classmethod
    async def start(cls, hosts: RunHosts, plan: SessionPlan, store: Path, meta: Mapping[str, str]) -> TuningSession:
        """Start the recorder, learner, searchers and scheduler. From :meth:`begin` on, every process of the session
        that is lost or hangs is replaced.

        Args:
            hosts: the builders and devices, which :meth:`close` ends too.
            plan: what is tuned.
            store: path of the record store.
            meta: the description of the run in the store.

        Raises ClusterError if a process is lost. Then the actors that this call started are ended; the hosts are not.
        """
        with lost_means_resume():
            actors = await RunActors.start(hosts, plan, store, meta)
            try:
                return await cls._started(hosts, actors, plan, store)
            except BaseException:
                await actors.close()
                raise

    @classmethod
    async def _started(cls, hosts: RunHosts, actors: RunActors, plan: SessionPlan, store: Path) -> TuningSession:
        run = run_plan(plan, hosts, actors.dealt)
        # A class without a task has no work: its devices are left alone.
        targets = {entry.task.device_class.name: entry.task.device_class.target for entry in plan.tasks}
        actors.handles.devices |= {
            name: device_client(hosts, actors, name).of_class(targets[device_class], hosts.power_of(name, device_class))
            for name, device_class in run.devices.items()
            if device_class in targets
        }
        notices = hosts.absent.notices
        orders = await note_run(hosts.fleet, hosts.run_id, store)
        schedule = SchedulerPlan(run, plan.method, plan.seed, orders, notices)

        def start_scheduler(run: RunPlan) -> SchedulerClient:
            return actors.start_scheduler(dataclasses.replace(schedule, run=run))

        supervisor = SchedulerSupervisor(run, start_scheduler, actors.recorder.last_seq, hosts.cluster)
        members = [
            WatchedProcess("the scheduler", ProcessRole.SCHEDULER, supervisor.beat, supervisor.end),
            *actors.members,
            *watched_builders(hosts.actors.builders),
            *(watched_device(name, device_client(hosts, actors, name)) for name in hosts.actors.devices),
        ]
        heartbeats = Heartbeats(members, supervisor.notice, supervisor.restarted, lambda: supervisor.now)
        admission = DeviceAdmission(supervisor, targets, actors.handles, hosts.classes, notices, hosts.fingerprints)
        ready = asyncio.ensure_future(actors.ready(plan.tasks))
        try:
            await asyncio.gather(ready, supervisor.started())
        except BaseException:
            ready.cancel()
            raise
        return cls(hosts, actors, supervisor, admission, heartbeats)

    def begin(self) -> None:
        """Tune in the background from now on."""
        self._begun.set()
        for name, device_class in self._hosts.absent.expected.items():
            if not device_class:
                self._admission.wait_for(name, self._client(name))

    async def _run(self) -> None:
        await self._begun.wait()
        await self._supervisor.run()

    async def _watch(self) -> None:
        await self._begun.wait()
        await self._heartbeats.watch()

    # Tasks -----------------------------------------------------------------------------------------------------------

    async def start_task(self, entry: SearchTask) -> None:
        """Tune a task of the plan from now on. Its sketches are known."""
        await self._actors.describe(entry)
        rules = tuple(sketch.rule for sketch in entry.sketches)
        await self._supervisor.tell(SketchesReady(entry.task.id, rules, entry.confirmation_trials, entry.floor_secs))

    async def skip_task(self, task_id: str) -> None:
        """Skip a task of the plan that has no sketch."""
        await self._supervisor.tell(TaskSkipped(task_id))

    # Classes ---------------------------------------------------------------------------------------------------------

    async def next_class(self) -> tuple[DeviceConfig, Fingerprint]:
        """Wait for the next device of a class for which nothing is tuned, and return its configuration and its
        fingerprint. :meth:`add_class` or :meth:`refuse_class` must follow."""
        name, fingerprint = await self._admission.next_class()
        return self._hosts.actors.configs[name], fingerprint

    async def add_class(self, tasks: Sequence[SearchTask], settled: Mapping[str, str]) -> bool:
        """Add the tasks of a class that :meth:`next_class` returned. Each is tuned once :meth:`start_task` is called
        for it. Return false if the tuning is over: then the class is not part of the run. ``settled``: as in
        :class:`SessionPlan`."""
        dealt = await self._actors.add_tasks(tasks)
        late = tuple(
            dataclasses.replace(planned(each, dealt[each.task.id], settled.get(each.task.id, "")), late=True)
            for each in tasks
        )
        name = tasks[0].task.device_class.name
        if not await self._supervisor.tell(ClassAdded(name, late)):
            return False
        text = f"class {name} joins: {len(tasks)} tasks are tuned for it as they are described"
        self._supervisor.notice(text, True)
        await self._admission.admit_class(tasks[0].task.device_class)
        return True

    async def refuse_class(self, device_class: str, reason: str) -> None:
        """Skip a class that :meth:`next_class` returned, because nothing can be tuned for it."""
        await self._supervisor.tell(ClassAdded(device_class))
        await self._admission.refuse_class(device_class, reason)

    @property
    def window(self) -> QuietWindow | None:
        """The quiet window of this machine; see :attr:`actors.run_hosts.RunHosts.window`."""
        return self._hosts.window

    @property
    def store_writer(self) -> StoreWriter:
        """Writes the entries of a new class into the store of the run."""
        return StoreWriter(self._actors.recorder)

    # Devices and machines --------------------------------------------------------------------------------------------

    @property
    def devices(self) -> dict[str, DeviceConfig]:
        """The devices of the run by name, including devices that the run waits for."""
        hosts = self._hosts.actors
        return {name: hosts.configs[name] for name in (*hosts.devices, *self._device_watch.without_node)}

    def members(self, with_absent: bool = False) -> dict[str, tuple[DeviceConfig, ...]]:
        """Return the devices that have answered and have not left, by class. ``with_absent``: add, behind the others,
        devices of a known class that were absent when the run began, since they may have come meanwhile."""
        classes, here = self._admission.classes, self.devices if with_absent else {}
        absent = {
            name: each
            for name, each in self._hosts.absent.expected.items()
            if each and name in here and name not in classes
        }
        return members_of({**classes, **absent}, self._hosts.actors.configs)

    async def admit_device(self, device: DeviceConfig) -> bool:
        """Add a device that the fleet file now names. It is used once it answers. Return false if people have taken it
        out of use.

        Raises UserError for a device that cannot join a run under way: the device is recorded, or it shares the cores
        of its host and the run began without quiet windows.
        """
        hosts = self._hosts
        if device.name in await out_of_use(hosts.fleet, [device.name]):
            return False
        if device.shares_host and hosts.window is None:
            host = "this machine" if device.via is None else f"host {device.via}"
            problem = f"device {device.name} shares the cores of {host}, which nobody keeps quiet in this run"
            raise UserError(problem, "start the run again: it resumes")
        if hosts.fleet.datasets or isinstance(device.connection, RecordedConnection):
            problem = f"device {device.name}: recorded devices are those that a run begins with"
            raise UserError(problem, "start the run again: it resumes")
        hosts.actors.configs[device.name] = device
        await self._device_watch.start_device(device.name)
        return True

    async def remove_device(self, name: str, reason: str) -> None:
        """Remove a device that the fleet file no longer names. Its work is done elsewhere, and no candidate is
        blamed."""
        await self._device_watch.remove(name, reason)

    async def follow_nodes(self) -> None:
        """Follow the machines of the cluster. To be called every few seconds. When a machine leaves, its builders leave
        too, and the run waits for its devices. When a machine joins, it builds too, and its devices join once they
        answer. Raises ClusterError."""
        if self._hosts.cluster.is_embedded:
            return
        nodes = await self._hosts.actors.nodes()
        await self._builder_watch.follow(nodes)
        await self._device_watch.follow(nodes)

    def _client(self, name: str) -> DeviceClient:
        return device_client(self._hosts, self._actors, name)

    # Results ---------------------------------------------------------------------------------------------------------

    async def records(self, cursor: int = 0, traces: bool = False) -> AsyncIterator[Record | None]:
        """Yield acknowledged records with ``seq > cursor`` as they come, with or without their ``traces``, and None
        whenever a second passes without a record. The iteration ends when the tuning has ended and all records are
        read. Raises the error that ended the tuning early."""
        while True:
            over = self._running.done() or self._abandoned
            wait_secs = 0.0 if over else _FOLLOW_SECS
            following = asyncio.ensure_future(self._actors.recorder.follow(cursor, wait_secs, traces))
            try:
                if not over:  # the end of the tuning ends the wait
                    await asyncio.wait({following, self._running}, return_when=asyncio.FIRST_COMPLETED)
                    if not following.done():
                        continue
                records = await following
            finally:
                following.cancel()
            for record in records:
                yield record
                cursor = record.seq
            if over and not records:
                break
            if not records:
                yield None
        if self._running.done():
            self._running.result()

    async def last_seq(self) -> int:
        """The sequence number of the last record of the store."""
        return await self._actors.recorder.last_seq()

    async def last_progress(self) -> Progress:
        """Return the snapshot of a session whose tuning is over. It includes the processes that were lost until now."""
        await self._supervisor.progress()
        await self._heartbeats.look(_LOOK_SECS)
        return await self._supervisor.progress()

    async def progress(self) -> Progress:
        """Return a snapshot of the progress; while the scheduler is lost or hangs, the last snapshot."""
        silent = self._heartbeats.silent
        progress = await self._supervisor.progress(is_silent="the scheduler" in silent)
        return dataclasses.replace(progress, silent=silent) if silent else progress

    def notice(self, text: str, well: bool) -> None:
        """Show people a line. ``well``: true if it reports nothing bad."""
        self._supervisor.notice(text, well)

    @property
    def helpers(self) -> tuple[int, int]:
        """The numbers of builders and of searchers."""
        return len(self._hosts.actors.builders), len(self._actors.searchers)

    async def usage(self) -> dict[str, Use]:
        """Return the use of the run's processes so far; see :func:`actors.fleet_usage.used`."""
        hosts = self._hosts.actors
        roles = {"builders": list(set(hosts.builders.values())), "devices": list(hosts.devices.values())}
        return await used({**self._actors.by_role, **roles}, self._hosts.cluster)

    # End -------------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop granting trials. Measurements under way are stored if they end in time."""
        if not self._begun.is_set() or self._running.done():
            return
        await self._supervisor.stop()
        await asyncio.wait([self._running], timeout=_STOP_SECS)
        self._abandoned = True

    async def close(self) -> None:
        """End every actor. Acknowledged records are already durable."""
        if self._closed:
            return
        self._closed = True
        for watch in (self._admission, self._builder_watch, self._device_watch):
            watch.close()
        for task in (self._running, self._watching):
            task.cancel()  # the scheduler is ended below: nothing waits for it any more
        await self._actors.close()
        await self._hosts.close()


def device_client(hosts: RunHosts, actors: RunActors, name: str) -> DeviceClient:
    """Return the client of a started device whose class and power mode are not known yet."""
    return DeviceClient(hosts.actors.devices[name], "", actors.recorder, hosts.in_turns)
