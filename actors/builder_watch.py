"""Builders that join or leave a run when their machine joins or leaves the cluster."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from actors.clients.builder import BuilderMachineClient, builder_clients
from actors.clients.calls import error_line
from actors.clients.handles import ActorHandles
from actors.host_actors import HostActors, by_machine
from actors.scheduling.heartbeats import Heartbeats, WatchedProcess
from actors.scheduling.supervisor import SchedulerSupervisor
from fleet_tune.base.errors import UserError
from fleet_tune.base.results import ProcessRole
from policies.runs.cluster.placement import ClusterNode
from policies.runs.events import BuildersAdded, BuildersLeft

_LOG = logging.getLogger(__name__)


def watched_builders(builders: Mapping[int, Any]) -> list[WatchedProcess]:
    """The processes of builders, for the heartbeats."""
    clients = {name: BuilderMachineClient(actor) for name, actor in by_machine(builders).items()}
    return [
        WatchedProcess(name, ProcessRole.BUILDER, each.beat, each.restart, is_one_of_many=True)
        for name, each in clients.items()
    ]


class BuilderWatch:
    """Adds and removes the builders of nodes that join and leave the cluster.

    Args:
        hosts: starts and ends the processes of builders.
        supervisor: is told of builders that join and leave.
        heartbeats: watches the processes of the builders.
        handles: the registry of actors, which gets each builder that a scheduler may use.
    """

    def __init__(
        self, hosts: HostActors, supervisor: SchedulerSupervisor, heartbeats: Heartbeats, handles: ActorHandles
    ) -> None:
        self._hosts = hosts
        self._supervisor = supervisor
        self._heartbeats = heartbeats
        self._handles = handles
        self._checks: dict[asyncio.Task[None], Collection[int]] = {}
        """Version checks of new builders that are under way, with the builders' numbers."""

    async def follow(self, nodes: Sequence[ClusterNode]) -> None:
        """Remove the builders whose node has left the cluster, and start builders on each node that has joined. New
        builders are used once they have answered. Nothing waits for their answer, since their node may hang."""
        lost = self._hosts.remove_lost_builders(nodes)
        if lost:
            for check in [check for check, numbers in self._checks.items() if not lost.keys().isdisjoint(numbers)]:
                check.cancel()
            for name in by_machine(lost):
                self._heartbeats.remove(name)
            await self._supervisor.tell(BuildersLeft(tuple(lost)))
            self._supervisor.notice(f"a machine has left the cluster, with its builders ({len(lost)})", False)
        for node, builders in self._hosts.start_more_builders(nodes):
            check = asyncio.create_task(self._check_and_add(node, builders))
            self._checks[check] = builders.keys()
            check.add_done_callback(self._checked)

    def close(self) -> None:
        """Cancel the checks under way."""
        for check in self._checks:
            check.cancel()

    async def _check_and_add(self, node: ClusterNode, builders: Mapping[int, Any]) -> None:
        try:
            await self._hosts.check_builder_versions(builders)
        except UserError as error:
            self._hosts.exclude_builders(node, builders)
            self._supervisor.notice(f"machine {node} does not build: {error}", False)
            return
        self._handles.builders |= builder_clients(builders)
        await self._supervisor.tell(BuildersAdded(tuple(builders)))
        for process in watched_builders(builders):
            self._heartbeats.add(process)
        for actor, count in Counter(builders.values()).items():
            BuilderMachineClient(actor).warm_up(count)
        self._supervisor.notice(f"machine {node} builds now (builders: {len(builders)})", True)

    def _checked(self, check: asyncio.Task[None]) -> None:
        del self._checks[check]
        if not check.cancelled() and (error := check.exception()) is not None:
            _LOG.error("builders did not join", exc_info=error)
            self._supervisor.notice(f"builders of a machine did not join: {error_line(error)}", False)
