"""The nodes of a cluster that drive the devices of a run and host its builders.

All other actors of a run (scheduler, recorder, learner, searchers) are on the head, the driver's node, which has the
output folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HOST_RESOURCE = "fleet-tune-host:"
"""Prefix of a custom resource: a node that joins the cluster with the resource PREFIX + NAME is the host NAME."""
BUILDER_BYTES = 1 << 30
"""Memory for each builder; builders get half of the free memory of a node."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of the cluster."""

    node_id: str
    name: str
    """Name that Ray gives it."""
    address: str
    hosts: frozenset[str] = frozenset()
    """Host names from its custom resources (:data:`HOST_RESOURCE`)."""
    cpus: float = 0.0
    """Number of CPUs that it offers to the cluster."""
    free_cpus: float = 0.0
    """Number of these that no other process of the cluster uses."""
    free_bytes: float = 0.0
    """Memory that no other process of the cluster uses."""

    def __str__(self) -> str:
        """Name of the node for people."""
        known = [self.address] if self.name != self.address else []
        known += [f"{HOST_RESOURCE}{host}" for host in sorted(self.hosts)]
        return f"{self.name} ({', '.join(known)})" if known else self.name


@dataclass(frozen=True, slots=True)
class Placement:
    """The node that drives a device."""

    node_id: str | None
    """Id of the node; None if no node fits."""
    reason: str = ""
    """Why no node fits, in words."""


def place_device(nodes: Sequence[ClusterNode], head: str, via: str | None) -> Placement:
    """Choose the node that drives a device whose entry names the host ``via``: by a custom resource, the name of a
    node, or its address, in this order. If several nodes fit, the ``head`` (a node id) goes first. Without ``via`` the
    head drives the device."""
    if via is None:
        return Placement(head)
    ways = (
        [node.node_id for node in nodes if via in node.hosts],
        [node.node_id for node in nodes if via == node.name],
        [node.node_id for node in nodes if via == node.address],
    )
    for fitting in ways:
        if fitting:
            return Placement(head if head in fitting else min(fitting))
    known = ", ".join(sorted(map(str, nodes))) or "none"
    return Placement(
        None,
        f"no node of the cluster has the name or address {via}, or the resource {HOST_RESOURCE}{via} "
        f"(its nodes: {known})",
    )


def place_builders(
    nodes: Sequence[ClusterNode],
    head: str,
    workers: int | None = None,
    total: int | None = None,
    there: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Choose how many builders each node gets, by node id. There is at least one builder in the cluster.

    Args:
        nodes: the nodes of the cluster.
        head: id of the driver's node.
        workers: builders on every node that has CPUs; None for one builder for each free CPU, if half of the free
            memory has :data:`BUILDER_BYTES` for each.
        total: limit for the cluster, dealt out in proportion; None for no limit.
        there: builders that each node has already; these nodes get no more.
    """
    there = there or {}
    wanted = {node.node_id: _wanted(node, workers) for node in nodes if node.node_id not in there}
    if not there and not any(wanted.values()):
        wanted[head] = 1
    room = math.inf if total is None else max(0, total - sum(there.values()))
    if room < sum(wanted.values()):
        wanted = _dealt_out(wanted, head, int(room))
    return {node_id: count for node_id, count in wanted.items() if count}


def _wanted(node: ClusterNode, workers: int | None) -> int:
    if node.cpus < 1:
        return 0
    if workers is not None:
        return workers
    return max(0, min(math.floor(node.free_cpus), math.floor(node.free_bytes / 2 / BUILDER_BYTES)))


def _dealt_out(wanted: Mapping[str, int], head: str, total: int) -> dict[str, int]:
    """Deal out ``total`` builders one by one, each to the node with the smallest part of what it wanted, the head
    first."""
    given = dict.fromkeys(wanted, 0)
    takers = [node_id for node_id, count in wanted.items() if count]
    for _ in range(total):
        least = min(takers, key=lambda node_id: (given[node_id] / wanted[node_id], node_id != head, node_id))
        given[least] += 1
    return given
