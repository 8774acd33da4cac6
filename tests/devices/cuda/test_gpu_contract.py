"""What every GPU behind our device server promises: the one of this machine, and one of software
(tests/helpers/emulated_gpu). TVM's own CUDA runtime is between them and the server."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from devices.builds.builder import BuildWorker
from devices.client.rpc_device import RpcDevice
from devices.protocol import Artifact, BuildRequest, MeasureRequest, TensorSpec
from devices.sketches.spaces import DesignSpace
from fleet_tune.base.domain import Candidate, Outcome, StopRule
from policies.space.sampling import sample
from tests.helpers.gpu_kernels import gpu_artifact
from tests.helpers.programs import program_task
from tests.helpers.served_gpu import LARGE, ServedGpu
from tests.helpers.workloads import WORKLOADS

RULE = StopRule(micro_batch_secs=1e-4, max_batches=5, timeout_secs=30.0)
SHORT = StopRule(micro_batch_secs=1e-4, max_batches=5, timeout_secs=1.0)
CANDIDATES = 2
"""Of each sketch."""


@contextmanager
def short_of_memory(device: RpcDevice, left_bytes: int) -> Iterator[None]:
    """Within the block the session of ``device`` can allocate so many bytes and a little more."""
    bench = device._connection.workbench()
    ballast = bench.empty(TensorSpec((bench.device.available_global_memory - left_bytes,), "uint8"))
    try:
        yield
    finally:
        del ballast


def test_the_fingerprint_has_the_figures_of_the_gpu(device: RpcDevice) -> None:
    found = device.fingerprint()
    abstraction = found.abstraction
    assert (abstraction.kind, abstraction.lanes, abstraction.registers) == ("cuda", 32, 65536)
    assert abstraction.cores == device._connection.workbench().device.multi_processor_count
    assert (abstraction.l1_bytes, abstraction.max_threads_per_block) == (48 << 10, 1024)
    assert abstraction.l2_bytes >= 1 << 20
    assert abstraction.peak_flops > 1e6
    assert abstraction.bandwidth_bytes > 1e6
    assert abstraction.tensor_cores > 0
    again = device.probe_secs()
    assert found.probe_secs / 20 < again < found.probe_secs * 20
    assert found.microcode == ""


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


def test_a_bad_access_fails_the_candidate_and_the_next_session_works(gpu: ServedGpu, device: RpcDevice) -> None:
    assert gpu.measure(device, RULE).verified
    for _ in range(2):
        failed = gpu.measure(device, RULE, "outside")
        assert failed.outcome is Outcome.RUN_ERROR, failed
        assert "an illegal memory access was encountered" in failed.detail
    assert gpu.measure(device, RULE).verified
    assert device.probe_secs() > 0


def test_a_kernel_that_does_not_end_is_ended(gpu: ServedGpu, device: RpcDevice) -> None:
    failed = gpu.measure(device, SHORT, "endless")
    assert failed.outcome is Outcome.RUN_TIMEOUT, failed
    assert gpu.measure(device, RULE).verified


def test_a_launch_that_is_refused_fails_the_candidate_alone(gpu: ServedGpu, device: RpcDevice) -> None:
    assert gpu.measure(device, RULE).verified
    session = device._connection.bench
    failed = gpu.measure(device, RULE, "wide")
    assert failed.outcome is Outcome.RUN_ERROR
    assert "CUDA_ERROR_INVALID_VALUE" in failed.detail, "not the source of the kernel, which TVM puts behind it"
    assert gpu.measure(device, RULE).verified
    assert device._connection.bench is session


@pytest.mark.parametrize("workload", ["matmul-relu", "softmax"])
def test_candidates_of_each_sketch_are_built_measured_and_right(
    gpu: ServedGpu, device: RpcDevice, workload: str
) -> None:
    task = program_task(WORKLOADS[workload](), gpu.target, name=workload)
    rng = np.random.default_rng(1)
    verified: set[int] = set()
    with BuildWorker() as worker:
        oracle = worker.build(BuildRequest(task, None))
        assert isinstance(oracle, Artifact), oracle
        device.add_oracle(oracle)
        for sketch in DesignSpace(task).sketches:
            for row in sample(sketch, CANDIDATES, rng):
                candidate = Candidate(task.id, sketch.index, sketch.id, tuple(int(value) for value in row))
                built = worker.build(BuildRequest(task, candidate))
                if isinstance(built, Artifact):
                    measured = device.measure(MeasureRequest(built, math.inf, RULE))
                    assert measured.outcome in (Outcome.OK, Outcome.RUN_ERROR), measured
                    assert measured.outcome is Outcome.OK or "CUDA_ERROR_INVALID_VALUE" in measured.detail, measured
                    verified |= {sketch.index} if measured.verified else set()
    assert verified
