"""Devices come and go while a run goes on: with the fleet file, and with the machines that drive them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from actors.clients.device import DeviceClient
from actors.host_actors import HostActors
from actors.scheduling.admission import DeviceAdmission
from actors.scheduling.heartbeats import Heartbeats, Member
from actors.scheduling.supervisor import SchedulerSupervisor
from fleet_tune.base.errors import UserError
from policies.runs.cluster.placement import Node
from policies.runs.events import DeviceAdded, DeviceLeft


def device_member(name: str, device: DeviceClient) -> Member:
    """The process of a device as one that owes signs of life."""
    return Member(f"device {name}", device.beat, device.restart, is_one_of_many=True)


class DeviceWatch:
    """Adds and removes devices with the fleet file, and with the machines that drive them.

    Args:
        hosts: starts and ends the processes of devices.
        scheduling: is told of devices that are added and that leave.
        heartbeats: watches the processes of the devices.
        admission: waits for the answer of each device that is added.
        client: makes the client of a device that has said nothing of itself yet.
    """

    def __init__(
        self,
        hosts: HostActors,
        scheduling: SchedulerSupervisor,
        heartbeats: Heartbeats,
        admission: DeviceAdmission,
        client: Callable[[str], DeviceClient],
    ) -> None:
        self._hosts = hosts
        self._scheduling = scheduling
        self._heartbeats = heartbeats
        self._admission = admission
        self._client = client
        self._hostless: set[str] = set()
        self._coming: dict[str, asyncio.Task[None]] = {}  # devices whose host has come

    @property
    def hostless(self) -> frozenset[str]:
        """Devices that are waited for until their host is there."""
        return frozenset(self._hostless)

    async def add(self, name: str) -> None:
        """The fleet has a device more, which is waited for. Raises VersionsDifferError, ClusterError."""
        hostless = await self._started(name)
        await self._scheduling.tell(self._added(name))
        if hostless:
            self._wait_for_host(name, hostless)
        else:
            self._scheduling.notice(f"device {name} is of the fleet now: it joins when it answers", True)
            self._expect(name)

    async def remove(self, name: str, reason: str) -> None:
        """The fleet has a device less: what it works on is done elsewhere, and nobody is blamed."""
        coming = self._coming.pop(name, None)
        if coming is not None:
            coming.cancel()
        await self._admission.forget(name)
        self._heartbeats.remove(f"device {name}")
        await self._scheduling.tell(DeviceLeft(name, reason))
        self._admission.remove(name)
        self._hostless.discard(name)
        self._hosts.end_device(name)

    async def follow(self, nodes: Sequence[Node]) -> None:
        """Devices whose machine has left are waited for, and those join whose machine has come, when they answer."""
        for name in self._hosts.gone(nodes):
            await self.remove(name, f"its host {self._hosts.configs[name].via} has left the cluster")
            await self._scheduling.tell(self._added(name))
            self._wait_for_host(name, "its host may come back")
        for name in sorted(self._hostless):
            if not self._hosts.start_device(name, nodes):
                self._hostless.discard(name)
                self._coming[name] = asyncio.create_task(self._come(name))

    def close(self) -> None:
        """Nobody joins any more."""
        for coming in self._coming.values():
            coming.cancel()

    def _added(self, name: str) -> DeviceAdded:
        return DeviceAdded(name, candidate_secs=self._hosts.configs[name].patience.candidate_secs)

    async def _started(self, name: str) -> str:
        """Start the process of a device; why its host is not there, in words."""
        nodes = () if self._hosts.configs[name].via is None else await self._hosts.nodes()
        hostless = self._hosts.start_device(name, nodes)
        if not hostless:
            try:
                await self._hosts.check_device_versions([name])
            except UserError:
                self._hosts.end_device(name)
                raise
        return hostless

    async def _come(self, name: str) -> None:
        """A device whose host has come, and which nobody waits for: that host may be one that hangs."""
        try:
            await self._hosts.check_device_versions([name])
        except UserError as error:
            del self._coming[name]
            await self.remove(name, str(error))
        else:
            del self._coming[name]
            self._expect(name)

    def _expect(self, name: str) -> None:
        self._heartbeats.add(device_member(name, self._client(name)))
        self._admission.expect(name, self._client(name))

    def _wait_for_host(self, name: str, reason: str) -> None:
        self._hostless.add(name)
        self._scheduling.notice(f"device {name} is waited for: {reason}", False)
