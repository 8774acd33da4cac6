"""The machines of a Ray cluster, and how an actor is pinned to one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.clients.calls import WINDOW_WAIT_SECS, first_line
from devices.host.quiet_windows.quiet_window import QuietWindow
from fleet_tune.base.errors import ClusterError
from policies.runs.cluster.placement import HOST_RESOURCE, ClusterNode


def nodes_of_cluster(head: str) -> tuple[ClusterNode, ...]:
    """The machines that are there now, as Ray knows them. ``head``: node id of this process' own; of its CPUs those
    count that this process may use. Raises ClusterError where the cluster does not say."""
    import ray
    from ray._private.state import available_resources_per_node

    try:
        free, there = available_resources_per_node(), ray.nodes()
    except Exception as error:
        problem = f"the nodes of the cluster cannot be listed: {first_line(error)}"
        raise ClusterError(problem, "look at the cluster ('ray status') and run the same command again") from error
    usable = {head: float(len(os.sched_getaffinity(0)))}
    return tuple(
        _node(each, free.get(each["NodeID"], {}), usable.get(each["NodeID"], float("inf")))
        for each in there
        if each["Alive"]
    )


def _node(told: Mapping[str, Any], free: Mapping[str, float], usable_cpus: float) -> ClusterNode:
    resources, address = told["Resources"], told["NodeManagerAddress"]
    hosts = (name.removeprefix(HOST_RESOURCE) for name in resources if name.startswith(HOST_RESOURCE))
    return ClusterNode(
        node_id=told["NodeID"],
        name=told.get("NodeName") or address,
        address=address,
        hosts=frozenset(hosts),
        cpus=min(resources.get("CPU", 0.0), usable_cpus),
        free_cpus=min(free.get("CPU", 0.0), usable_cpus),
        free_bytes=free.get("memory", 0.0),
    )


def pinned_to(node_id: str) -> Any:
    """The scheduling strategy of an actor that is on this node or nowhere."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def own_window_folder() -> Path:
    """Where the quiet windows of this user are on the machine of this process."""
    return Path(tempfile.gettempdir()) / f"fleet-tune-quiet-{os.getuid()}"


@dataclass(frozen=True)
class Windows:
    """The quiet windows of the hosts of a run: each host has its own. ``folder``: of that of the driver's host, whose
    node is ``head``."""

    head: str
    folder: Path

    def here(self) -> QuietWindow:
        """The window of the host that the actor of this process is on. Raises WindowFolderError."""
        import ray

        at_head = ray.get_runtime_context().get_node_id() == self.head
        return QuietWindow(self.folder if at_head else own_window_folder(), WINDOW_WAIT_SECS)
