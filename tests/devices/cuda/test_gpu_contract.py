"""What every GPU behind our device server promises: the one of this machine, and one of software
(tests/helpers/emulated_gpu). TVM's own CUDA runtime is between them and the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from devices.client.rpc_device import RpcDevice
from devices.protocol import TensorSpec
from fleet_tune.base.domain import Outcome, StopRule
from tests.helpers.gpu_kernels import gpu_artifact
from tests.helpers.served_gpu import LARGE, ServedGpu

RULE = StopRule(micro_batch_secs=1e-4, max_batches=5, timeout_secs=30.0)


@contextmanager
def short_of_memory(device: RpcDevice, left_bytes: int) -> Iterator[None]:
    """Within the block the session of ``device`` can allocate so many bytes and a little more."""
    bench = device._connection.workbench()
    ballast = bench.empty(TensorSpec((bench.device.available_global_memory - left_bytes,), "uint8"))
    try:
        yield
    finally:
        del ballast


def test_a_good_candidate_is_measured_until_it_is_certain_and_verified(gpu: ServedGpu, device: RpcDevice) -> None:
    calm = StopRule(micro_batch_secs=1e-4, max_batches=50, max_cv=1e9, timeout_secs=30.0)
    measured = gpu.measure(device, calm)
    assert (measured.outcome, measured.verified, measured.stopped) == (Outcome.OK, True, "converged"), measured
    assert len(measured.run_secs) < 50
    assert 0 < measured.cost_secs < 1.0


def test_a_wrong_candidate_is_found(gpu: ServedGpu, device: RpcDevice) -> None:
    measured = gpu.measure(device, RULE, "wrong")
    assert measured.outcome is Outcome.WRONG_OUTPUT
    assert "values differ" in measured.detail


def test_want_of_memory_fails_the_candidate_alone(gpu: ServedGpu, device: RpcDevice) -> None:
    assert gpu.measure(device, RULE).verified
    session = device._connection.bench
    with short_of_memory(device, 3 * LARGE):
        failed = gpu.measure(device, RULE, n=LARGE)
        assert failed.outcome is Outcome.RUN_ERROR
        assert "out of memory" in failed.detail
        assert gpu.measure(device, RULE).verified
    assert gpu.measure(device, RULE, n=LARGE).verified
    assert device._connection.bench is session


def test_want_of_memory_for_the_oracle_leaves_a_candidate_unverified(gpu: ServedGpu, device: RpcDevice) -> None:
    """The tensors of a measurement fit, those of a check beside them do not."""
    assert gpu.measure(device, RULE).verified
    with short_of_memory(device, 12 * LARGE):
        measured = gpu.measure(device, RULE, n=LARGE)
        assert (measured.outcome, measured.verified) == (Outcome.OK, False), measured
        assert "out of memory" in device.run_oracle(gpu_artifact(gpu.target, n=LARGE).task_id)
    assert gpu.measure(device, RULE).verified


def test_a_launch_that_is_refused_fails_the_candidate_alone(gpu: ServedGpu, device: RpcDevice) -> None:
    assert gpu.measure(device, RULE).verified
    session = device._connection.bench
    failed = gpu.measure(device, RULE, "wide")
    assert failed.outcome is Outcome.RUN_ERROR
    assert "CUDA_ERROR_INVALID_VALUE" in failed.detail, "not the source of the kernel, which TVM puts behind it"
    assert gpu.measure(device, RULE).verified
    assert device._connection.bench is session
