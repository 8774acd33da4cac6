"""Devices that another node of the cluster drives, as the driver itself uses them. At the end of a run it checks and
times networks on devices; other commands ask devices for their fingerprints."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from actors.clients.base import request_beat
from actors.clients.calls import LOST, ActorTimeoutError, fetch, first_line, remote_actor
from actors.clusters.nodes import nodes_of_cluster, pinned_to
from devices.device_factory import open_device
from devices.host.children.child import without_torch
from devices.protocol import Artifact, Device, MeasureRequest, OracleOutputs
from devices.timing.arguments import Array
from devices.timing.in_network import InNetworkTimes
from devices.timing.network_device import NetworkDevice, NetworkHandle
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Fingerprint, Measurement, Outcome
from fleet_tune.base.errors import DeviceUnreachableError, UncheckedError
from policies.runs.cluster.placement import place_device

_CALL_SECS = 3600.0
"""Longest call. A device has its own deadlines, such as the one for loading a network over a slow link. A call ends
earlier if the process does not answer heartbeats."""
_BEAT_EVERY_SECS = 2.0
_START_SECS = 120.0
"""Longest wait for the first heartbeat."""
_SILENT_SECS = 10.0
_CLOSE_SECS = 5.0


@contextlib.contextmanager
def opened_elsewhere(config: DeviceConfig, realtime: bool = True) -> Iterator[Device]:
    """Open the device of an entry with ``via`` on the node that drives it, in the cluster that this process is
    connected to; see :func:`devices.device_factory.open_device`. Raises DeviceUnreachableError if there is no such
    node."""
    import ray

    if not ray.is_initialized():
        reason = f"it is driven from host {config.via} of a cluster: give its address with --address"
        raise DeviceUnreachableError(config.name, reason)
    head = ray.get_runtime_context().get_node_id()
    place = place_device(nodes_of_cluster(head), head, config.via)
    if place.node_id is None:
        raise DeviceUnreachableError(config.name, place.reason)
    there = config.model_copy(update={"via": None})
    actor = device_there(RemoteDeviceActor, scheduling_strategy=pinned_to(place.node_id)).remote(there, realtime)
    try:
        yield RemoteDevice(config.name, actor)
    finally:
        with contextlib.suppress(Exception):
            fetch(actor.close.remote(), _CLOSE_SECS, "close")
        with contextlib.suppress(Exception):
            ray.kill(actor)


def device_there(cls: type, **options: Any) -> Any:
    """The Ray class of :class:`RemoteDeviceActor`, or of a subclass: it answers heartbeats while it is busy."""
    return remote_actor(cls, groups={"beat": 1}, **options)


class RemoteDeviceActor:
    """The actor on the node that drives the device. It opens the device at the first call, so that an error of opening
    it becomes the answer to that call."""

    def __init__(self, config: DeviceConfig, realtime: bool) -> None:
        without_torch()
        self._config = config
        self._opened = contextlib.ExitStack()
        self._open = functools.cache(lambda: self._opened.enter_context(open_device(config, realtime)))
        self._networks: dict[int, NetworkHandle] = {}
        self._numbers = itertools.count()

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the device."""
        return getattr(self._open(), method)(*arguments)

    def load_network(self, library: bytes, arguments: Sequence[Array]) -> int:
        """Load a network and return its number. Raises UncheckedError."""
        device = self._open()
        if not isinstance(device, NetworkDevice):
            raise UncheckedError(f"device {self._config.name} answers from a dataset and runs nothing")
        number = next(self._numbers)
        # Arrays of the object store cannot be written to, and may be dropped later.
        self._networks[number] = device.load_network(library, [array.copy() for array in arguments])
        return number

    def ask_network(self, number: int, method: str, *arguments: Any) -> Any:
        """Call a method of a loaded network."""
        return getattr(self._networks[number], method)(*arguments)

    def forget_network(self, number: int) -> None:
        """Drop a loaded network."""
        self._networks.pop(number, None)

    def beat(self) -> None:
        """Answer a heartbeat, in a thread beside the other calls."""

    def close(self) -> None:
        self._networks.clear()
        self._opened.close()


class RemoteCalls:
    """Calls of a :class:`RemoteDeviceActor`. Each call waits as long as the actor's process answers heartbeats."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self._patience_secs = _START_SECS

    def answer(self, reference: Any, what: str) -> Any:
        """Wait for the answer to a call. Raises what the call raises, and ActorTimeoutError."""
        import ray

        deadline = time.monotonic() + _CALL_SECS
        while not ray.wait([reference], timeout=_BEAT_EVERY_SECS, fetch_local=False)[0]:
            if time.monotonic() > deadline:
                raise ActorTimeoutError(f"{what}: no answer within {_CALL_SECS:g} s")
            beat = request_beat(self.actor)
            if not ray.wait([reference, beat], timeout=self._patience_secs, fetch_local=False)[0]:
                raise ActorTimeoutError(f"{what}: the process that drives the device gives no sign of life")
            self._patience_secs = _SILENT_SECS
        return fetch(reference, _CALL_SECS, what)


class RemoteDevice:
    """See :class:`devices.protocol.NetworkDevice`."""

    def __init__(self, device_id: str, actor: Any) -> None:
        self._device_id = device_id
        self._calls = RemoteCalls(actor)

    def fingerprint(self) -> Fingerprint:
        fingerprint: Fingerprint = self._asked("fingerprint")
        return fingerprint

    def ping(self) -> float:
        return float(self._asked("ping"))

    def probe_secs(self) -> float:
        return float(self._asked("probe_secs"))

    def power(self) -> str:
        return str(self._asked("power"))

    def vitals(self) -> dict[str, float]:
        try:
            return dict(self._asked("vitals"))
        except DeviceUnreachableError:
            return {}

    def add_oracle(self, artifact: Artifact) -> None:
        self._asked("add_oracle", artifact)

    def run_oracle(self, task_id: str) -> str:
        return str(self._asked("run_oracle", task_id))

    def use_oracle_outputs(self, task_id: str, outputs: OracleOutputs) -> None:
        self._asked("use_oracle_outputs", task_id, outputs)

    def measure(self, request: MeasureRequest) -> Measurement:
        try:
            measurement: Measurement = self._asked("measure", request)
        except DeviceUnreachableError as error:
            return Measurement(Outcome.DEVICE_LOST, detail=error.detail)
        return measurement

    def extra_secs(self, artifacts: Sequence[Artifact], budget_secs: float) -> float | None:
        try:
            secs: float | None = self._asked("extra_secs", artifacts, budget_secs)
        except DeviceUnreachableError:
            return None
        return secs

    def load_network(self, library: bytes, arguments: Sequence[Array]) -> RemoteNetwork:
        """Raise UncheckedError if the network cannot be loaded."""
        try:
            loading = self._calls.actor.load_network.remote(library, list(arguments))
            number = self._calls.answer(loading, "load a network")
        except LOST as error:
            raise UncheckedError(f"device {self._device_id}: {first_line(error)}") from error
        return RemoteNetwork(self._calls, number)

    def close(self) -> None:
        """Do nothing: :func:`opened_elsewhere` closes the device."""

    def _asked(self, method: str, *arguments: Any) -> Any:
        try:
            return self._calls.answer(self._calls.actor.ask.remote(method, *arguments), method)
        except LOST as error:
            raise DeviceUnreachableError(self._device_id, first_line(error)) from error


class RemoteNetwork:
    """See :class:`devices.timing.network_device.NetworkHandle`. The network is dropped with this object."""

    def __init__(self, calls: RemoteCalls, number: int) -> None:
        self._calls = calls
        self._number = number
        weakref.finalize(self, _forget, calls.actor, number)

    def outputs(self) -> tuple[Array, ...]:
        return tuple(array.copy() for array in self._asked("outputs"))

    def measure_within(self, budget_secs: float) -> float:
        return float(self._asked("measure_within", budget_secs))

    def kernel_times(self, budget_secs: float) -> InNetworkTimes:
        timed: InNetworkTimes = self._asked("kernel_times", budget_secs)
        return timed

    def _asked(self, method: str, *arguments: Any) -> Any:
        try:
            asked = self._calls.actor.ask_network.remote(self._number, method, *arguments)
            return self._calls.answer(asked, method)
        except LOST as error:
            raise UncheckedError(f"the machine that drives the device was lost: {first_line(error)}") from error


def _forget(actor: Any, number: int) -> None:
    with contextlib.suppress(Exception):  # the actor is gone, or Ray is
        actor.forget_network.remote(number)
