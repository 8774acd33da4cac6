"""Which machine of a cluster hosts what of a run: where each device is driven from, and how many builders are where.

Everything else that works for a run (scheduler, recorder, learner, searchers) is on the head, the driver's machine: the
output folder is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOST_RESOURCE = "fleet-tune-host:"
"""A machine that joins the cluster with a custom resource of this name and NAME behind it is the host NAME."""
BUILDER_BYTES = 1 << 30
"""Memory that each builder has at least; half of what is free on a machine is its builders'."""


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that is part of the cluster. ``name``: what Ray calls it; ``hosts``: the names of its custom resources
    (:data:`HOST_RESOURCE`). ``cpus``: that it has for the cluster, of which ``free_cpus`` are nobody's by now;
    ``free_bytes``: memory of the same kind."""

    node_id: str
    name: str
    address: str
    hosts: frozenset[str] = frozenset()
    cpus: float = 0.0
    free_cpus: float = 0.0
    free_bytes: float = 0.0

    def __str__(self) -> str:
        """As people know it."""
        known = [self.address] if self.name != self.address else []
        known += [f"{HOST_RESOURCE}{host}" for host in sorted(self.hosts)]
        return f"{self.name} ({', '.join(known)})" if known else self.name


@dataclass(frozen=True, slots=True)
class Place:
    """Where a device is driven from: the id of a node, or None and why there is none, in words."""

    node_id: str | None
    reason: str = ""


def device_place(nodes: Sequence[Node], head: str, via: str | None) -> Place:
    """Where a device is driven from that names the host ``via``, by a custom resource, the name of a node, or its
    address, in this order; where several fit, from the head (a node id) if it is one of them. None: from the head."""
    if via is None:
        return Place(head)
    ways = (
        [node.node_id for node in nodes if via in node.hosts],
        [node.node_id for node in nodes if via == node.name],
        [node.node_id for node in nodes if via == node.address],
    )
    for fitting in ways:
        if fitting:
            return Place(head if head in fitting else min(fitting))
    known = ", ".join(sorted(map(str, nodes))) or "none"
    return Place(
        None,
        f"no node of the cluster has the name or address {via}, or the resource {HOST_RESOURCE}{via} "
        f"(its nodes: {known})",
    )


def builder_places(
    nodes: Sequence[Node],
    head: str,
    workers: int | None = None,
    total: int | None = None,
    there: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """How many builders each node gets, by its id, so that there is at least one altogether.

    ``workers``: on every node that has CPUs for the cluster; None for as many as have a free CPU each, and
    :data:`BUILDER_BYTES` of half of the free memory. ``total``: no more altogether, dealt out in proportion.
    ``there``: how many each node has by now; these keep theirs, and get no more.
    """
    there = there or {}
    wanted = {node.node_id: _wanted(node, workers) for node in nodes if node.node_id not in there}
    if not there and not any(wanted.values()):
        wanted[head] = 1
    room = math.inf if total is None else max(0, total - sum(there.values()))
    if room < sum(wanted.values()):
        wanted = _dealt_out(wanted, head, int(room))
    return {node_id: count for node_id, count in wanted.items() if count}


def _wanted(node: Node, workers: int | None) -> int:
    if node.cpus < 1:
        return 0
    if workers is not None:
        return workers
    return max(0, min(math.floor(node.free_cpus), math.floor(node.free_bytes / 2 / BUILDER_BYTES)))


def _dealt_out(wanted: Mapping[str, int], head: str, total: int) -> dict[str, int]:
    """``total`` of what is wanted: one after the other to whoever has the smallest part of its own, the head first."""
    given = dict.fromkeys(wanted, 0)
    takers = [node_id for node_id, count in wanted.items() if count]
    for _ in range(total):
        least = min(takers, key=lambda node_id: (given[node_id] / wanted[node_id], node_id != head, node_id))
        given[least] += 1
    return given
