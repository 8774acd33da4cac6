"""The latency of a compiled network, split by its tasks."""

from __future__ import annotations

from collections.abc import Mapping

from devices.networks.tasks.lowering import LoweredNetwork
from devices.timing.in_network import InNetworkTimes, kernel_of
from fleet_tune.base.results import InNetwork, KernelTime


def in_network(
    timed: InNetworkTimes, lowered: LoweredNetwork, alone_secs: Mapping[str, float], latency_secs: float
) -> InNetwork:
    """Split the latency of a network into its tasks.

    Args:
        timed: the times of the network's kernels.
        lowered: the network.
        alone_secs: seconds of the kernel of each task id when it runs alone.
        latency_secs: the latency. Kernels get the same share of it as they had of the whole runs that were timed
            beside them, and together never more than all of it: when calls are timed one by one, threads may fall
            asleep between them, so that kernels take longer.
    """
    by_hash = {task.workload.hash: task for task in lowered.tasks}
    calls = dict.fromkeys(by_hash, 0)
    secs = dict.fromkeys(by_hash, 0.0)
    others_secs = 0.0
    share = latency_secs / max(timed.secs, sum(timed.kernel_secs.values()))
    for name, kernel_secs in timed.kernel_secs.items():
        workload = lowered.workload_of(kernel_of(name))
        if workload in by_hash:
            calls[workload] += timed.calls[name] * lowered.repeats_of(kernel_of(name))
            secs[workload] += share * kernel_secs
        else:
            others_secs += share * kernel_secs
    kernels = tuple(
        KernelTime(
            task.id,
            task.workload.name,
            calls[digest],
            alone_secs.get(task.id),
            secs[digest] / calls[digest],
            timed.clock_secs,
        )
        for digest, task in by_hash.items()
        if calls[digest]
    )
    return InNetwork(latency_secs, kernels, others_secs)
