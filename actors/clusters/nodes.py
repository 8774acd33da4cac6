"""The nodes of a Ray cluster, and how an actor is pinned to one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.clients.calls import WINDOW_WAIT_SECS, first_line
from devices.host.quiet_windows.quiet_window import QuietWindow
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.errors import ClusterError
from policies.runs.cluster.placement import HOST_RESOURCE, ClusterNode


def nodes_of_cluster(head: str) -> tuple[ClusterNode, ...]:
    """The nodes that Ray lists. ``head``: id of this process' node; on that node, only CPUs that this process may use
    are counted. Raises ClusterError if the cluster does not answer."""
    import ray
    from ray._private.state import available_resources_per_node

    try:
        free, there = available_resources_per_node(), ray.nodes()
    except Exception as error:
        problem = f"the nodes of the cluster cannot be listed: {first_line(error)}"
        raise ClusterError(problem, "look at the cluster ('ray status') and run the same command again") from error
    usable = {head: float(usable_cpus())}
    return tuple(
        _node(each, free.get(each["NodeID"], {}), usable.get(each["NodeID"], float("inf")))
        for each in there
        if each["Alive"]
    )


def _node(listed: Mapping[str, Any], free: Mapping[str, float], usable_cpus: float) -> ClusterNode:
    resources, address = listed["Resources"], listed["NodeManagerAddress"]
    hosts = (name.removeprefix(HOST_RESOURCE) for name in resources if name.startswith(HOST_RESOURCE))
    return ClusterNode(
        node_id=listed["NodeID"],
        name=listed.get("NodeName") or address,
        address=address,
        hosts=frozenset(hosts),
        cpus=min(resources.get("CPU", 0.0), usable_cpus),
        free_cpus=min(free.get("CPU", 0.0), usable_cpus),
        free_bytes=free.get("memory", 0.0),
    )


def pinned_to(node_id: str) -> Any:
    """The scheduling strategy that pins an actor to a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def own_window_folder() -> Path:
    """The folder of this user's quiet windows on the machine of this process."""
    return Path(tempfile.gettempdir()) / f"fleet-tune-quiet-{os.getuid()}"


@dataclass(frozen=True)
class Windows:
    """The quiet windows of the hosts of a run; each host has its own."""

    head: str
    """Id of the driver's node."""
    folder: Path
    """Folder of the window of the driver's host."""

    def here(self, title: str = "") -> QuietWindow:
        """The window of the host of this process' actor. ``title``: names the actor to processes that wait for it.
        Raises WindowFolderError."""
        import ray

        at_head = ray.get_runtime_context().get_node_id() == self.head
        return QuietWindow(self.folder if at_head else own_window_folder(), WINDOW_WAIT_SECS, title)
