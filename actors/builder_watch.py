"""Builders come and go with the machines of the cluster that they are on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from actors.clients.builder import BuilderClient
from actors.hosts import Hosts
from actors.scheduling.heartbeats import Heartbeats, Member
from actors.scheduling.succession import Scheduling
from fleet_tune.errors import UserError
from policies.runs.placement import Node


def builder_member(number: int, builder: Any) -> Member:
    """A builder as one who owes signs of life."""
    client = BuilderClient(builder)
    return Member(_name(number), client.beat, client.restart, is_one_of_many=True)


async def follow_builders(
    hosts: Hosts,
    nodes: Sequence[Node],
    scheduling: Scheduling,
    heartbeats: Heartbeats,
    check_versions: Callable[[Mapping[int, Any]], Awaitable[None]],
) -> None:
    """Have builders on the machines that are there. ``check_versions``: raises UserError where these builders have
    another TVM than the run."""
    gone = hosts.builders_gone(nodes)
    if gone:
        for number in gone:
            heartbeats.remove(_name(number))
        await scheduling.remove_builders(gone)
        scheduling.notice(f"a machine has left the cluster, with its builders ({len(gone)})", False)
    for node, builders in hosts.more_builders(nodes):
        try:
            await check_versions(builders)
        except UserError as error:
            hosts.leave_out(node, builders)
            scheduling.notice(f"machine {node} does not build: {error}", False)
            continue
        await scheduling.add_builders({number: BuilderClient(each) for number, each in builders.items()})
        for number, each in builders.items():
            heartbeats.add(builder_member(number, each))
            BuilderClient(each).warm_up()
        scheduling.notice(f"machine {node} builds now (builders: {len(builders)})", True)


def _name(number: int) -> str:
    return f"builder {number}"
