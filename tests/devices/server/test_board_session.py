"""A device server on a Jetson, by the files that tell of one: what its device says of itself, and of changes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import pytest

from devices.client.rpc_device import RpcDevice
from devices.host.machine import gpu_driver
from devices.protocol import MeasureRequest
from devices.server.server import DeviceServer
from devices.targets import TargetError
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Outcome, StopRule
from tests.helpers.jetson_files import JetsonFiles
from tests.helpers.kernels import MakeArtifact

RULE = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=60.0)


@pytest.fixture(scope="module")
def orin(tmp_path_factory: pytest.TempPathFactory) -> JetsonFiles:
    return JetsonFiles(tmp_path_factory.mktemp("orin"))


@pytest.fixture(scope="module")
def board(orin: JetsonFiles) -> Iterator[DeviceServer]:
    with DeviceServer(threads=1, root=orin.root) as running:
        yield running


@pytest.fixture
def device(board: DeviceServer, native_target: str) -> Iterator[RpcDevice]:
    opened = RpcDevice(DeviceConfig(name="orin", target=native_target, threads=1), "127.0.0.1", board.port)
    with contextlib.closing(opened):
        yield opened


def test_it_tells_its_power_mode_as_it_is_now(
    device: RpcDevice, orin: JetsonFiles, caplog: pytest.LogCaptureFixture
) -> None:
    orin.cooling(1, "cpu-throttle-alert", 1)
    found = device.fingerprint()
    orin.cooling(1, "cpu-throttle-alert", 0)
    assert "device orin is hot: its highest speeds were found at a lower clock" in caplog.messages
    assert found.power.startswith("MAXN (0, ")
    assert found.cpu_model == "NVIDIA Jetson AGX Orin Developer Kit"
    assert device.probe_secs() > 0
    orin.mode(2)
    assert device.power().startswith("30W (2, ")
    orin.mode(0)
    assert device.power() == found.power


def test_a_measurement_names_what_lowered_the_clock(
    device: RpcDevice, orin: JetsonFiles, make_artifact: MakeArtifact
) -> None:
    device.add_oracle(make_artifact("ok", oracle=True))

    def measured() -> tuple[Outcome, str]:
        found = device.measure(MeasureRequest(make_artifact("ok"), math.inf, RULE))
        return found.outcome, found.slowed_by

    assert measured() == (Outcome.OK, "")
    assert device.vitals()["hot"] == 0.0
    orin.cooling(1, "cpu-throttle-alert", 1)
    assert measured() == (Outcome.OK, "cpu-throttle-alert")
    assert device.vitals()["hot"] == 1.0
    orin.cooling(1, "cpu-throttle-alert", 0)
    assert measured() == (Outcome.OK, "")


@pytest.mark.skipif(bool(gpu_driver()), reason="this machine has NVIDIA's driver")
def test_a_gpu_without_its_driver_is_refused_with_what_is_missing(board: DeviceServer) -> None:
    config = DeviceConfig(name="orin", target={"kind": "cuda", "arch": "sm_87"})
    device = RpcDevice(config, "127.0.0.1", board.port)
    with contextlib.closing(device), pytest.raises(TargetError, match=r"device orin: its server can use no GPU \("):
        device.fingerprint()
