"""Oracles that are too slow for their device, on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te

from devices.client import host_oracle_worker
from devices.client.host_oracle import HostOracles
from devices.client.rpc_device import RpcDevice
from devices.protocol import Artifact, MeasureRequest, OracleOutputs
from devices.server.server import DeviceServer
from devices.sketches.contiguous_loops import in_contiguous_order
from devices.timing.checked_inputs import make_checked_inputs
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Measurement, Outcome, StopRule
from fleet_tune.base.records.files.lock_file import release_lock, take_lock
from fleet_tune.base.waits import WAITS
from tests.helpers.kernels import MakeArtifact, program
from tests.helpers.waiting import wait_until

DEADLINE_SECS = 120.0


@pytest.fixture
def host() -> Iterator[HostOracles]:
    with contextlib.closing(HostOracles()) as oracles:
        yield oracles


def ran(host: HostOracles, oracle: Artifact) -> OracleOutputs:
    host.begin(oracle, None)
    host.wait(oracle.task_id, DEADLINE_SECS)
    outputs = host.outputs(oracle.task_id)
    assert outputs is not None, host.failure(oracle.task_id)
    assert not host.is_computing(oracle.task_id)
    return outputs


def test_what_is_too_slow_for_a_device_is_computed_here_and_its_candidates_are_checked(
    host: HostOracles,
    server: DeviceServer,
    native_target: str,
    make_artifact: MakeArtifact,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("devices.client.output_check.sent_bytes", lambda _: 0)
    config = DeviceConfig(name="test", target=native_target, threads=2, oracle_secs=0.1)
    oracle = dataclasses.replace(make_artifact("slow", oracle=True, task_id="large"), program=program("ok"))
    with contextlib.closing(RpcDevice(config, "127.0.0.1", server.port)) as device:
        device.add_oracle(oracle)
        assert device.run_oracle("large") == "its unscheduled program did not end within 0 s"
        device.use_oracle_outputs("large", ran(host, oracle))
        assert device.run_oracle("large") == ""

        def measured(what: str) -> Measurement:
            rule = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=60.0)
            return device.measure(MeasureRequest(make_artifact(what, task_id="large"), math.inf, rule))

        assert measured("ok").verified
        assert measured("wrong").outcome is Outcome.WRONG_OUTPUT


def test_it_has_the_inputs_of_the_device(host: HostOracles, make_artifact: MakeArtifact) -> None:
    oracle = dataclasses.replace(make_artifact("ok", oracle=True), program=program("ok"))
    outputs = ran(host, oracle)
    [run] = outputs.runs
    given, _ = make_checked_inputs(oracle.task_id, oracle.original_args, (1,), False, oracle.check)
    np.testing.assert_allclose(run.outputs[0], 2 * given + 1, rtol=1e-6)
    assert (run.special, outputs.positive) == (False, False)


def test_it_runs_on_positive_inputs_where_others_give_no_numbers(
    host: HostOracles, make_artifact: MakeArtifact
) -> None:
    oracle = dataclasses.replace(make_artifact("roots", oracle=True), program=program("roots"))
    outputs = ran(host, oracle)
    assert outputs.positive
    assert np.isfinite(outputs.runs[0].outputs[0]).all()


def test_the_reason_is_told_where_it_cannot_run_here(host: HostOracles, make_artifact: MakeArtifact) -> None:
    oracle = dataclasses.replace(make_artifact("ok", oracle=True), program="no program")
    host.begin(oracle, None)
    host.wait("scale", DEADLINE_SECS)
    assert host.outputs("scale") is None
    assert host.failure("scale")


def test_one_that_is_too_slow_here_too_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_artifact: MakeArtifact
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "never_answers.py").write_text(
        "from devices.host.children.child import parent_channel\n"
        "channel = parent_channel()\nchannel.send({'ready': True})\nwhile True:\n    channel.receive()\n"
    )
    oracle = dataclasses.replace(make_artifact("ok", oracle=True), program="any")
    with contextlib.closing(HostOracles("never_answers", limit_secs=0.2)) as host:
        host.begin(oracle, None)
        host.wait("scale", DEADLINE_SECS)
        assert host.failure("scale") == "its process gave no answer within 0.2 s"
        host.begin(oracle, None)
        assert not host.is_computing("scale"), "it is tried once"


def test_one_runs_at_a_time_on_a_machine(tmp_path: Path, make_artifact: MakeArtifact) -> None:
    oracle = dataclasses.replace(make_artifact("ok", oracle=True), program=program("ok"))
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    lock = take_lock(folder / "oracle")  # another process runs one
    with contextlib.closing(HostOracles(folder=folder)) as host:
        host.begin(oracle, None)
        told = "this machine's turn to run unscheduled programs"
        wait_until(lambda: [each.what for each in WAITS.waits] == [told], "the wait is told")
        assert host.is_computing("scale")
        release_lock(lock)
        host.wait("scale", DEADLINE_SECS)
        assert host.outputs("scale") is not None, host.failure("scale")
        release_lock(take_lock(folder / "oracle"))


def test_a_process_that_keeps_the_turn_is_not_waited_for(tmp_path: Path, make_artifact: MakeArtifact) -> None:
    lock = take_lock(tmp_path / "oracle")
    oracle = dataclasses.replace(make_artifact("ok", oracle=True), program="no program")
    with contextlib.closing(HostOracles(limit_secs=0.1, folder=tmp_path)) as host:
        host.begin(oracle, None)
        host.wait("scale", DEADLINE_SECS)
        assert host.failure("scale")
    release_lock(lock)


def test_an_oracle_whose_program_is_not_known_is_not_begun(host: HostOracles, make_artifact: MakeArtifact) -> None:
    host.begin(make_artifact("ok", oracle=True), None)
    assert not host.is_computing("scale")
    assert (host.outputs("scale"), host.failure("scale")) == (None, "")


def test_no_sum_runs_in_parallel() -> None:
    """A product and what is made of it, and a sum to one number."""
    a, b = te.placeholder((32, 48), name="a"), te.placeholder((48, 64), name="b")
    k, m, n = te.reduce_axis((0, 48)), te.reduce_axis((0, 32)), te.reduce_axis((0, 64))
    product = te.compute((32, 64), lambda i, j: te.sum(a[i, k] * b[k, j], k), name="product")
    grown = te.compute((32, 64), lambda i, j: product[i, j] + 1.0, name="grown")
    total = te.compute((1,), lambda _: te.sum(grown[m, n], [m, n]), name="total")
    function = te.create_prim_func([a, b, grown, total]).with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": function})
    scheduled = in_contiguous_order(module, in_parallel=True).script()
    assert scheduled.count("T.parallel(32)") == scheduled.count("T.parallel(") == 2
    kernel = host_oracle_worker.compiled(str(tvm.ir.save_json(module)))
    rng = np.random.default_rng(0)
    arrays = [rng.random(shape, np.float32) for shape in ((32, 48), (48, 64), (32, 64), (1,))]
    tensors = [tvm.runtime.tensor(each) for each in arrays]
    kernel(*tensors)
    expected = arrays[0] @ arrays[1] + 1
    np.testing.assert_allclose(tensors[2].numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(tensors[3].numpy(), [expected.sum()], rtol=1e-4)
