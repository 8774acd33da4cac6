"""Devices that join or leave a run under way, when the fleet file or the cluster's machines change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from actors.clients.device import DeviceClient
from actors.host_actors import HostActors
from actors.scheduling.device_admission import DeviceAdmission
from actors.scheduling.heartbeats import Heartbeats, WatchedProcess
from actors.scheduling.supervisor import SchedulerSupervisor
from fleet_tune.base.errors import UserError
from fleet_tune.base.results import ProcessRole
from policies.runs.cluster.placement import ClusterNode
from policies.runs.events import DeviceAdded, DeviceLeft


def watched_device(name: str, device: DeviceClient) -> WatchedProcess:
    """The process of a device, for the heartbeats."""
    return WatchedProcess(f"device {name}", ProcessRole.DEVICE, device.beat, device.restart, is_one_of_many=True)


class DeviceWatch:
    """Adds and removes devices when the fleet file changes, and when the machines that drive them join or leave.

    Args:
        hosts: starts and ends the processes of devices.
        supervisor: is told of devices that are added and that leave.
        heartbeats: watches the processes of the devices.
        admission: waits for the answer of each device that is added.
        client: makes the client of a device that has not answered yet.
    """

    def __init__(
        self,
        hosts: HostActors,
        supervisor: SchedulerSupervisor,
        heartbeats: Heartbeats,
        admission: DeviceAdmission,
        client: Callable[[str], DeviceClient],
    ) -> None:
        self._hosts = hosts
        self._supervisor = supervisor
        self._heartbeats = heartbeats
        self._admission = admission
        self._client = client
        self._without_node: set[str] = set()
        self._checks: dict[str, asyncio.Task[None]] = {}
        """Version checks of devices whose node has joined the cluster. Nothing waits for them, since that node may
        hang."""

    @property
    def without_node(self) -> frozenset[str]:
        """Devices whose node is not in the cluster; each is started when its node joins."""
        return frozenset(self._without_node)

    async def start_device(self, name: str) -> None:
        """Start the process of a device that the fleet file now names, and wait for its answer in the background.
        Raises VersionsDifferError, ClusterError."""
        missing_node = await self._start_process(name)
        await self._supervisor.tell(self._added(name))
        if missing_node:
            self._wait_for_node(name, missing_node)
        else:
            self._supervisor.notice(f"device {name} is part of the fleet now: it joins when it answers", True)
            self._wait_for_answer(name)

    async def remove(self, name: str, reason: str) -> None:
        """End the process of a device that leaves the run. Its work is done elsewhere, and no candidate is blamed."""
        check = self._checks.pop(name, None)
        if check is not None:
            check.cancel()
        await self._admission.stop_waiting(name)
        self._heartbeats.remove(f"device {name}")
        await self._supervisor.tell(DeviceLeft(name, reason))
        self._admission.remove(name)
        self._without_node.discard(name)
        self._hosts.end_device(name)

    async def follow(self, nodes: Sequence[ClusterNode]) -> None:
        """Remove each device whose node has left the cluster, until the node is back. Start each such device whose node
        has joined."""
        for name in self._hosts.devices_without_node(nodes):
            await self.remove(name, f"its host {self._hosts.configs[name].via} has left the cluster")
            await self._supervisor.tell(self._added(name))
            self._wait_for_node(name, "its host may come back")
        for name in sorted(self._without_node):
            if not self._hosts.start_device_process(name, nodes):
                self._without_node.discard(name)
                self._checks[name] = asyncio.create_task(self._check_and_wait(name))

    def close(self) -> None:
        """Cancel the checks under way."""
        for check in self._checks.values():
            check.cancel()

    def _added(self, name: str) -> DeviceAdded:
        return DeviceAdded(name, timeouts=self._hosts.configs[name].timeouts)

    async def _start_process(self, name: str) -> str:
        """Start the process of a device. Return the reason in words if its node is not in the cluster, otherwise an
        empty text."""
        nodes = () if self._hosts.configs[name].via is None else await self._hosts.nodes()
        missing_node = self._hosts.start_device_process(name, nodes)
        if not missing_node:
            try:
                await self._hosts.check_device_versions([name])
            except UserError:
                self._hosts.end_device(name)
                raise
        return missing_node

    async def _check_and_wait(self, name: str) -> None:
        try:
            await self._hosts.check_device_versions([name])
        except UserError as error:
            del self._checks[name]
            await self.remove(name, str(error))
        else:
            del self._checks[name]
            self._wait_for_answer(name)

    def _wait_for_answer(self, name: str) -> None:
        self._heartbeats.add(watched_device(name, self._client(name)))
        self._admission.wait_for(name, self._client(name))

    def _wait_for_node(self, name: str, reason: str) -> None:
        self._without_node.add(name)
        self._supervisor.notice(f"device {name} is waited for: {reason}", False)
