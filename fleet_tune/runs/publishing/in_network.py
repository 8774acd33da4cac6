"""The time of a compiled network, by its tasks."""

from __future__ import annotations

from collections.abc import Mapping

from devices.networks.lowering import LoweredNetwork
from devices.timing.in_network import InNetworkTimes, kernel_of
from fleet_tune.base.results import InNetwork, KernelTime


def in_network(timed: InNetworkTimes, lowered: LoweredNetwork, alone_secs: Mapping[str, float]) -> InNetwork:
    """Sum the times of kernels by task.

    Args:
        timed: the times of the network's kernels.
        lowered: the network.
        alone_secs: seconds of the kernel of each task id when it runs alone.
    """
    by_hash = {task.workload.hash: task for task in lowered.tasks}
    calls = dict.fromkeys(by_hash, 0)
    secs = dict.fromkeys(by_hash, 0.0)
    others_secs = 0.0
    for name, kernel_secs in timed.kernel_secs.items():
        workload = lowered.workloads.get(kernel_of(name), "")
        if workload in by_hash:
            calls[workload] += timed.calls[name]
            secs[workload] += kernel_secs
        else:
            others_secs += kernel_secs
    kernels = tuple(
        KernelTime(task.id, task.workload.name, calls[digest], alone_secs.get(task.id), secs[digest] / calls[digest])
        for digest, task in by_hash.items()
        if calls[digest]
    )
    return InNetwork(timed.secs, kernels, others_secs, timed.left_over_secs)
