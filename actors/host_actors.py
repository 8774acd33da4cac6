"""The builders of a run and the processes that own its devices, each on its machine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from actors.clients.calls import ask
from actors.clients.threads import in_thread
from actors.clusters.cluster import Cluster
from actors.clusters.nodes import Windows, own_window_folder, pinned_to
from actors.processes.builder import Worker, builders_actor
from actors.processes.device import device_actor
from actors.turns.run_turns import RunTurns
from devices.builds.builder import BuildWorker
from devices.host.versions import HostVersions, check_same_tvm, this_host_versions
from devices.protocol import Device
from devices.simulated.recorded import RecordedBuilder
from fleet_tune.base.config.fleet_file import DeviceConfig, FleetConfig, LocalConnection
from fleet_tune.base.errors import FleetFileError
from policies.runs.cluster.placement import ClusterNode, place_builders, place_device

OpenDevice = Callable[[DeviceConfig, bool], contextlib.AbstractContextManager[Device]]
_CLOSE_SECS = 0.5
_HOST_SECS = 120.0  # processes are still being started


class HostActors:
    """The actors of a run's builders and devices, on the machines that host them.

    Args:
        cluster: the machines.
        fleet: the devices that the run starts with, and how many builders it wants.
        run_id: id of the run.
        artifacts: folder of kernels that earlier runs built; None for none.
        open_device: opens the device of an entry of the fleet file; its second argument is true if the device may
            time kernels at real-time priority.
        make_worker: makes the worker of a builder; None for the one that the fleet needs.
        turns: the turns that the run takes with other runs on the devices; None if no other run shares them.
    """

    configs: dict[str, DeviceConfig]
    """The devices of the run by name, including devices without a process."""
    devices: dict[str, Any]
    """The actor of each device that has a process, by the device's name."""
    builders: dict[int, Any]
    """The actor of each builder, by the builder's number. A number is never used again. Builders of one machine that
    started together share an actor."""
    windows: Windows | None
    """The quiet windows of the machines; None if no device shares the cores of its machine."""

    def __init__(
        self,
        cluster: Cluster,
        fleet: FleetConfig,
        run_id: str,
        artifacts: Path | None,
        open_device: OpenDevice,
        make_worker: Callable[[], Worker] | None,
        turns: RunTurns | None,
    ) -> None:
        # A device may share the cores of its host with builders, and on this machine with searchers. They pause while
        # it measures.
        shared = any(device.shares_host for device in fleet.devices)
        self.windows = Windows(cluster.node_id, own_window_folder()) if shared else None
        self.builders: dict[int, Any] = {}
        self.devices: dict[str, Any] = {}
        self.configs = {device.name: device for device in fleet.devices}
        self._cluster = cluster
        self._fleet = fleet
        self._run_id = run_id
        self._artifacts = artifacts
        self._open_device = open_device
        self._make_worker = make_worker
        self._turns = turns
        self._nodes: dict[str, str] = {}
        """Id of the node that drives each device."""
        self._builder_nodes: dict[int, str] = {}
        """Id of the node of each builder."""
        self._numbers = itertools.count()
        self._excluded: set[str] = set()
        """Ids of nodes that cannot build."""

    async def start(self, out_of_use: Collection[str]) -> None:
        """Start the builders, and a process for each device. A device that is ``out_of_use`` and whose host is not in
        the cluster is skipped; any other device without a host raises FleetFileError."""
        nodes = await self.nodes()
        head = self._cluster.node_id
        places = {name: place_device(nodes, head, device.via) for name, device in self.configs.items()}
        for name, place in places.items():
            if place.node_id is None and name not in out_of_use:
                raise FleetFileError(
                    f"{self._fleet.where(name, 'via')}: device {name!r}: {place.reason}",
                    "correct via, or have the host join the cluster that --address gives",
                )
        # Builders with the lowest numbers build first. The head comes last, since it has other work too.
        for node_id, workers in sorted(self._builder_places(nodes).items(), key=lambda each: each[0] == head):
            self._start_builders(node_id, workers)
        for name, place in places.items():
            if place.node_id is not None:
                self._start_device(name, place.node_id)

    async def nodes(self) -> tuple[ClusterNode, ...]:
        """The nodes of the cluster. Raises ClusterError."""
        return await in_thread(self._cluster.nodes)

    def start_device_process(self, name: str, nodes: Sequence[ClusterNode]) -> str:
        """Start the process of one more device. Return the reason in words if its host is not in the cluster, otherwise
        an empty text."""
        place = place_device(nodes, self._cluster.node_id, self.configs[name].via)
        if place.node_id is not None:
            self._start_device(name, place.node_id)
        return place.reason

    def devices_without_node(self, nodes: Sequence[ClusterNode]) -> list[str]:
        """The devices whose node has left the cluster: their processes can only be ended."""
        there = {node.node_id for node in nodes}
        return [name for name, node_id in self._nodes.items() if node_id not in there]

    def remove_lost_builders(self, nodes: Sequence[ClusterNode]) -> dict[int, Any]:
        """End the builders whose node has left the cluster, and return them."""
        there = {node.node_id for node in nodes}
        gone = {
            number: self.builders[number] for number, node_id in self._builder_nodes.items() if node_id not in there
        }
        self.end_builders(gone)
        return gone

    def start_more_builders(self, nodes: Sequence[ClusterNode]) -> Iterator[tuple[ClusterNode, dict[int, Any]]]:
        """Start builders on each node that has joined the cluster and can build."""
        by_id = {node.node_id: node for node in nodes if node.node_id not in self._excluded}
        for node_id, workers in self._builder_places(list(by_id.values())).items():
            yield by_id[node_id], self._start_builders(node_id, workers)

    def exclude_builders(self, node: ClusterNode, builders: Iterable[int]) -> None:
        """End the builders of a node that cannot build, and start none there any more."""
        self._excluded.add(node.node_id)
        self.end_builders(builders)

    def end_builders(self, numbers: Iterable[int]) -> None:
        """End these builders, which must be all builders of their actors."""
        import ray

        ended = set()
        for number in numbers:
            del self._builder_nodes[number]
            ended.add(self.builders.pop(number))
        for actor in ended:
            with contextlib.suppress(Exception):  # the actor may have ended already
                ray.kill(actor, no_restart=True)

    def end_device(self, name: str) -> None:
        """End the process of a device, if it has one."""
        import ray

        self._nodes.pop(name, None)
        actor = self.devices.pop(name, None)
        if actor is not None:
            with contextlib.suppress(Exception):  # the actor may have ended already
                ray.kill(actor, no_restart=True)

    def holding(
        self,
        names: Collection[str],
        report_wait: Callable[[str], None],
        is_over: Callable[[], bool],
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the turns on these devices for this run alone, even after the devices' processes have ended; see
        :meth:`actors.turns.run_turns.RunTurns.holding`."""
        if self._turns is None:
            return contextlib.nullcontext()
        known = [name for name in self.configs if name in names and name in self._nodes]
        return self._turns.holding(
            [(self.configs[name], _number_of(self.configs, name), self._nodes[name]) for name in known],
            report_wait,
            is_over,
        )

    async def check_builder_versions(self, builders: Mapping[int, Any]) -> None:
        """Raise VersionsDifferError if one of these builders has a different TVM from this process."""
        await _check_versions(by_machine(builders))

    async def check_device_versions(self, names: Iterable[str]) -> None:
        """Raise VersionsDifferError if the process of one of these devices has a different TVM from this process."""
        await _check_versions({f"the process of device {name}": self.devices[name] for name in names})

    async def close(self) -> None:
        """Close all actors. :meth:`end` ends actors that are busy, and their child processes with them."""
        hosts = [*set(self.builders.values()), *self.devices.values()]
        closing = (ask(actor.close.remote(), _CLOSE_SECS, "close") for actor in hosts)
        await asyncio.gather(*closing, return_exceptions=True)

    def end(self) -> None:
        """End the processes of all actors."""
        import ray

        for actor in (*self.devices.values(), *set(self.builders.values())):
            with contextlib.suppress(Exception):
                ray.kill(actor, no_restart=True)

    def _builder_places(self, nodes: Sequence[ClusterNode]) -> dict[str, int]:
        build, there = self._fleet.build, Counter(self._builder_nodes.values())
        return place_builders(nodes, self._cluster.node_id, build.workers, build.total_workers, there)

    def _start_builders(self, node_id: str, workers: int) -> dict[int, Any]:
        """Start ``workers`` builders on a node."""
        # Where datasets answer for all devices, they answer for the builds too.
        datasets = self._fleet.datasets
        make_worker = self._make_worker or (
            partial(RecordedBuilder, *datasets)
            if datasets
            else partial(_build_worker, self._artifacts, workers, self.windows)
        )
        actor = builders_actor(scheduling_strategy=pinned_to(node_id)).remote(make_worker, workers)
        started = {next(self._numbers): actor for _ in range(workers)}
        self.builders |= started
        self._builder_nodes |= dict.fromkeys(started, node_id)
        return started

    def _start_device(self, name: str, node_id: str) -> None:
        device = self.configs[name]
        self._nodes[name] = node_id
        self.devices[name] = device_actor(scheduling_strategy=pinned_to(node_id)).remote(
            name,
            # On that host the device is a local one.
            partial(self._open_device, device.model_copy(update={"via": None}), self._fleet.measure.realtime),
            self._run_id,
            self.windows,
            self._turns.requester(device, _number_of(self.configs, name), node_id) if self._turns is not None else None,
            leaves=not isinstance(device.connection, LocalConnection),
            shares_host=device.shares_host,
        )


def by_machine(builders: Mapping[int, Any]) -> dict[str, Any]:
    """Return the actors of ``builders``, which are given by number. The keys are names for people."""
    numbers: dict[Any, list[int]] = {}
    for number, actor in sorted(builders.items()):
        numbers.setdefault(actor, []).append(number)
    return {_builders_name(those): actor for actor, those in numbers.items()}


def _builders_name(numbers: Sequence[int]) -> str:
    return f"builder {numbers[0]}" if len(numbers) == 1 else f"builders {numbers[0]} to {numbers[-1]}"


async def _check_versions(actors: Mapping[str, Any]) -> None:
    """Raise VersionsDifferError if one of these actors, given by their names for people, has a different TVM from this
    process. Actors that do not answer are skipped: their loss is noticed elsewhere."""
    asking = (ask(actor.host.remote(), _HOST_SECS, f"the host of {what}") for what, actor in actors.items())
    hosts = await asyncio.gather(*asking, return_exceptions=True)
    for what, host in zip(actors, hosts, strict=True):
        if isinstance(host, HostVersions):
            check_same_tvm(this_host_versions(), what, host)


def _number_of(configs: Mapping[str, DeviceConfig], name: str) -> int:
    """Return the number of a device among the devices with the same address, counted from 1."""
    address = configs[name].connect, configs[name].via
    same = [each.name for each in configs.values() if (each.connect, each.via) == address]
    return 1 + same.index(name)


def _build_worker(artifacts: Path | None, workers: int, windows: Windows | None) -> BuildWorker:
    """Make the worker of one of ``workers`` builders of its host; it pauses while a device of that host measures."""
    return BuildWorker(artifacts, workers, window=None if windows is None else windows.here())
