"""A device that another machine of the cluster drives, as the driver asks it for what is no tuning."""

from __future__ import annotations

import gc
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from actors.clusters.nodes import nodes_of_cluster
from actors.remote_devices import RemoteDevice, RemoteDeviceActor, device_there
from devices.protocol import Artifact, MeasureRequest, OracleOutputs
from devices.timing.arguments import Array
from devices.timing.in_network import InNetworkTimes
from devices.timing.network_device import NetworkDevice
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Candidate, Measurement, Outcome
from fleet_tune.base.errors import DeviceUnreachableError, NetworkRunError, ProbeError, UncheckedError
from fleet_tune.runs.fleet.device_access import opened, reached
from tests.helpers.waiting import wait_until

DATA = Path(__file__).parents[2] / "bench/data/znver5-2.ftd"
IN_NETWORK = InNetworkTimes(3.0, {"kernel": 2.0}, {"kernel": 1}, 1.0)


class Network:
    """Its output is the sum of what it was loaded with."""

    def __init__(self, arguments: Sequence[Array]) -> None:
        self._arguments = arguments

    def outputs(self) -> tuple[Array, ...]:
        for array in self._arguments:
            array += 1  # type: ignore[misc]  # as TVM may, which takes them for its own
        return (sum(self._arguments[1:], self._arguments[0]),)

    def measure_within(self, budget_secs: float) -> float:
        if budget_secs == 0.0:
            raise NetworkRunError("it fails on the device")
        return 2 * budget_secs

    def kernel_times(self, _budget_secs: float) -> InNetworkTimes:
        return IN_NETWORK


class Board:
    """Answers, but for its probe; a ping only after so many signs of life."""

    def __init__(self) -> None:
        self.beats_first = 0

    def ping(self) -> float:
        while self.beats_first > 0:
            time.sleep(0.01)
        return 0.25

    def probe_secs(self) -> float:
        raise ProbeError("board", "no such instruction")

    def power(self) -> str:
        return ""

    def vitals(self) -> dict[str, float]:
        return {"celsius": 50.0}

    def add_oracle(self, artifact: Artifact) -> None:
        assert artifact.candidate is None

    def run_oracle(self, _task_id: str) -> str:
        return "it is slow"

    def use_oracle_outputs(self, _task_id: str, _outputs: OracleOutputs) -> None:
        """Not needed here."""

    def measure(self, request: MeasureRequest) -> Measurement:
        return Measurement(Outcome.OK, (request.incumbent_secs,))

    def extra_secs(self, artifacts: Sequence[Artifact], budget_secs: float) -> float | None:
        return budget_secs if artifacts else None

    def load_network(self, _library: bytes, arguments: Sequence[Array]) -> Network:
        return Network(arguments)

    def fingerprint(self) -> None:
        """Never asked for here."""

    close = fingerprint


class OfABoard(RemoteDeviceActor):
    def __init__(self) -> None:
        super().__init__(DeviceConfig(name="board"), realtime=False)
        board: Any = Board()
        self._open: Callable[[], Any] = lambda: board

    def beat(self) -> None:
        self._open().beats_first -= 1

    def wait_for_beats(self, beats: int) -> int:
        self._open().beats_first = beats
        return os.getpid()


@pytest.fixture
def board(ray_cluster: None) -> Iterator[tuple[RemoteDevice, Any]]:  # noqa: ARG001
    actor = device_there(OfABoard).remote()
    yield RemoteDevice("board", actor), actor
    ray.kill(actor)


def test_a_device_is_asked_where_it_is(board: tuple[RemoteDevice, Any]) -> None:
    device, actor = board
    assert isinstance(device, NetworkDevice)
    assert device.ping() == 0.25
    assert device.vitals() == {"celsius": 50.0}
    with pytest.raises(ProbeError, match="no such instruction"):
        device.probe_secs()
    oracle = Artifact("task", None, b"", (), (), (), (), "", 0.0)
    device.add_oracle(oracle)
    artifact = Artifact("task", Candidate("task", 0, "s", ()), b"", (), (), (), (), "", 0.0)
    assert device.measure(MeasureRequest(artifact, 2.0)).run_secs == (2.0,)
    assert (device.extra_secs([artifact], 0.5), device.extra_secs([], 0.5)) == (0.5, None)

    weights = np.full(1 << 20, 1.5, np.float32)  # in the object store, which nobody can write to
    network = device.load_network(b"library", [weights, weights])
    (output,) = network.outputs()
    assert output.flags.writeable
    assert output[0] == 5.0
    assert network.measure_within(1.5) == 3.0
    assert network.kernel_times(1.0) == IN_NETWORK
    with pytest.raises(NetworkRunError, match="it fails on the device"):
        network.measure_within(0.0)

    # What nobody holds any more is let go of.
    kept = ray.get(actor.__ray_call__.remote(lambda there: len(there._networks)))
    del network
    gc.collect()  # what it raised has held it
    left = ray.get(actor.__ray_call__.remote(lambda there: len(there._networks)))
    assert (kept, left) == (1, 0)

    def is_gone() -> bool:
        try:
            device.ping()
        except DeviceUnreachableError:
            return True
        return False

    ray.kill(actor, no_restart=True)  # does not wait for its end
    wait_until(is_gone, "the killed process no longer answers")
    with pytest.raises(DeviceUnreachableError, match="device board: "):
        device.ping()
    assert device.vitals() == {}
    assert device.measure(MeasureRequest(artifact, math.inf)).outcome is Outcome.DEVICE_LOST
    with pytest.raises(UncheckedError, match="device board: "):
        device.load_network(b"", [])


def test_a_process_that_stands_still_is_not_waited_for(
    board: tuple[RemoteDevice, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.remote_devices._BEAT_EVERY_SECS", 0.2)
    monkeypatch.setattr("actors.remote_devices._SILENT_SECS", 2.0)
    device, actor = board
    network = device.load_network(b"library", [])
    pid = ray.get(actor.wait_for_beats.remote(3))
    assert device.ping() == 0.25
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(DeviceUnreachableError, match="the process that drives the device gives no sign"):
            device.ping()
        with pytest.raises(UncheckedError, match="gives no sign of life"):
            network.measure_within(1.0)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert device.ping() == 0.25


@pytest.mark.usefixtures("ray_cluster")
def test_a_device_is_opened_on_the_host_that_its_entry_names() -> None:
    [node] = nodes_of_cluster(ray.get_runtime_context().get_node_id())
    there = DeviceConfig(name="a", connect=f"recorded:{DATA}", via=node.address)
    with opened(there) as device:
        assert device.fingerprint().probe_secs > 0
        assert isinstance(device, NetworkDevice)
        with pytest.raises(UncheckedError, match="device a answers from a dataset"):
            device.load_network(b"", [])
    nowhere = there.model_copy(update={"via": "lab"})
    with pytest.raises(DeviceUnreachableError, match=r"the name or address lab, .*its nodes: "), opened(nowhere):
        pass


def test_without_a_cluster_nobody_dials_the_address_of_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    device = DeviceConfig(name="a", connect="127.0.0.1:9090", via="lab")
    with (
        pytest.raises(DeviceUnreachableError, match="driven from host lab of a cluster: give its address with --addr"),
        reached([device], None),
        opened(device),
    ):
        pass
