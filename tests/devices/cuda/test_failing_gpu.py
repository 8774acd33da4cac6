"""A GPU of software that is lost."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from devices.client.rpc_device import RpcDevice
from fleet_tune.base.domain import Outcome, StopRule
from fleet_tune.base.errors import DeviceUnreachableError
from tests.helpers.emulated_gpu import ECC_UNCORRECTABLE, NO_DEVICE, UNKNOWN, EmulatedGpu
from tests.helpers.served_gpu import ServedGpu

#: Two micro-batches of one run: always the same launches.
RULE = StopRule(micro_batch_runs=1, min_batches=2, max_batches=2, race_factor=math.inf, timeout_secs=30.0)


@pytest.fixture
def device(emulated_server: ServedGpu, emulated: EmulatedGpu) -> Iterator[RpcDevice]:
    connected = emulated_server.connect()
    yield connected
    emulated.come_back()
    emulated.end_launches_after(0.0)
    connected.close()


@pytest.mark.parametrize("error", [NO_DEVICE, ECC_UNCORRECTABLE, UNKNOWN])
def test_a_lost_gpu_is_no_fault_of_a_candidate(
    emulated: EmulatedGpu, emulated_server: ServedGpu, device: RpcDevice, error: int
) -> None:
    assert emulated_server.measure(device, RULE).verified
    device.probe_secs()
    emulated.lose(error)
    lost = emulated_server.measure(device, RULE)
    assert lost.outcome is Outcome.DEVICE_LOST, lost
    assert "CUDA" in lost.detail
    for asked in (device.probe_secs, device.fingerprint):
        with pytest.raises(DeviceUnreachableError, match="CUDA"):
            asked()
    emulated.come_back()
    assert device.probe_secs() > 0
    assert emulated_server.measure(device, RULE).verified
