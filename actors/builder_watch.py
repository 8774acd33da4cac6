"""Builders come and go with the machines of the cluster that they are on."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from actors.clients.builder import BuildersClient, builder_clients
from actors.clients.calls import told
from actors.clients.handles import ActorHandles
from actors.host_actors import HostActors, by_machine
from actors.scheduling.heartbeats import Heartbeats, Member
from actors.scheduling.supervisor import SchedulerSupervisor
from fleet_tune.base.errors import UserError
from policies.runs.cluster.placement import Node
from policies.runs.events import BuildersAdded, BuildersLeft

_LOG = logging.getLogger(__name__)


def builder_members(builders: Mapping[int, Any]) -> list[Member]:
    """The processes of builders as those who owe signs of life."""
    clients = {name: BuildersClient(actor) for name, actor in by_machine(builders).items()}
    return [Member(name, each.beat, each.restart, is_one_of_many=True) for name, each in clients.items()]


class BuilderWatch:
    """Adds and removes the builders of machines that join and leave the cluster."""

    def __init__(
        self, hosts: HostActors, scheduling: SchedulerSupervisor, heartbeats: Heartbeats, handles: ActorHandles
    ) -> None:
        self._hosts = hosts
        self._scheduling = scheduling
        self._heartbeats = heartbeats
        self._handles = handles
        self._coming: dict[asyncio.Task[None], Collection[int]] = {}

    async def follow(self, nodes: Sequence[Node]) -> None:
        """Have builders on the machines that are there. Those of a machine that is new join when they answer, for which
        nobody waits: it may be one that hangs."""
        gone = self._hosts.builders_gone(nodes)
        if gone:
            for coming in [coming for coming, numbers in self._coming.items() if not gone.keys().isdisjoint(numbers)]:
                coming.cancel()
            for name in by_machine(gone):
                self._heartbeats.remove(name)
            await self._scheduling.tell(BuildersLeft(tuple(gone)))
            self._scheduling.notice(f"a machine has left the cluster, with its builders ({len(gone)})", False)
        for node, builders in self._hosts.more_builders(nodes):
            coming = asyncio.create_task(self._come(node, builders))
            self._coming[coming] = builders.keys()
            coming.add_done_callback(self._come_to_an_end)

    def close(self) -> None:
        """Nobody joins any more."""
        for coming in self._coming:
            coming.cancel()

    async def _come(self, node: Node, builders: Mapping[int, Any]) -> None:
        try:
            await self._hosts.check_builder_versions(builders)
        except UserError as error:
            self._hosts.leave_out(node, builders)
            self._scheduling.notice(f"machine {node} does not build: {error}", False)
            return
        self._handles.builders |= builder_clients(builders)
        await self._scheduling.tell(BuildersAdded(tuple(builders)))
        for member in builder_members(builders):
            self._heartbeats.add(member)
        for actor, count in Counter(builders.values()).items():
            BuildersClient(actor).warm_up(count)
        self._scheduling.notice(f"machine {node} builds now (builders: {len(builders)})", True)

    def _come_to_an_end(self, coming: asyncio.Task[None]) -> None:
        del self._coming[coming]
        if not coming.cancelled() and (error := coming.exception()) is not None:
            _LOG.error("builders did not join", exc_info=error)
            self._scheduling.notice(f"builders of a machine did not join: {told(error)}", False)
