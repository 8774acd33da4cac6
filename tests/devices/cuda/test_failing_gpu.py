"""A GPU of software that fails when it is told to: at every launch, for good, or by its own time limit."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from devices.client.rpc_device import RpcDevice
from fleet_tune.base.domain import Measurement, Outcome, StopRule
from fleet_tune.base.errors import DeviceUnreachableError
from tests.helpers.emulated_gpu import ECC_UNCORRECTABLE, ILLEGAL_ADDRESS, NO_DEVICE, UNKNOWN, EmulatedGpu
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


def test_a_bad_access_costs_two_sessions(emulated: EmulatedGpu, emulated_server: ServedGpu, device: RpcDevice) -> None:
    """An earlier candidate may have damaged the first one. It is not tried a third time."""
    assert emulated_server.measure(device, RULE).verified
    before = emulated.contexts
    assert emulated_server.measure(device, RULE, "outside").outcome is Outcome.RUN_ERROR
    assert emulated.contexts == before + 1
    assert emulated_server.measure(device, RULE).verified
    assert emulated.contexts == before + 2


@pytest.mark.parametrize("error", [ILLEGAL_ADDRESS, ECC_UNCORRECTABLE])
def test_a_fault_at_any_launch_is_no_fault_of_the_candidate_that_it_meets(
    emulated: EmulatedGpu, emulated_server: ServedGpu, error: int
) -> None:
    """Where its session has run another candidate before: it is measured again in a fresh one."""

    def measured(launch: int | None) -> tuple[Measurement, int]:
        """The measurement, and its launches."""
        device = emulated_server.connect()
        try:
            assert emulated_server.measure(device, RULE, best=1e-12).outcome is Outcome.OK  # without its oracle
            before = emulated.launches
            if launch is not None:
                emulated.fail_at(launch, error)
            return emulated_server.measure(device, RULE), emulated.launches - before
        finally:
            device.close()

    undisturbed, launches = measured(None)
    assert undisturbed.verified
    # The error comes back from whatever launch meets it: of the second kind the first and the last one stand for all.
    for launch in range(launches) if error == ILLEGAL_ADDRESS else (0, launches - 1):
        found, again = measured(launch)
        assert found.verified, f"after {launch} launches: {found}"
        assert again > launches


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


def test_a_gpu_that_also_draws_a_screen_ends_a_kernel_itself(
    emulated: EmulatedGpu, emulated_server: ServedGpu, device: RpcDevice
) -> None:
    emulated.end_launches_after(0.5)
    failed = emulated_server.measure(device, RULE, "endless")
    assert failed.outcome is Outcome.RUN_ERROR
    assert "the launch timed out and was terminated" in failed.detail
    assert emulated_server.measure(device, RULE).verified
