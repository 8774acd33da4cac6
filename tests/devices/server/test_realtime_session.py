"""Real-time priority in sessions of a real device server: which kernels run with it, and what a spinning one does."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import tvm
from tvm import te

from devices.builds.linking import link
from devices.client.rpc_device import RpcDevice
from devices.host.limits.priority import refusal
from devices.protocol import Artifact, MeasureRequest, TensorSpec
from devices.server.server import DeviceServer
from devices.targets import parse_target
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Candidate, Outcome, StopRule

RULE = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=0.5)
FIFO, OTHER = 1, 0


def kernel(target: str, function: str, repetitions: int) -> Artifact:
    """``B[i] = sum of function() over so many calls``, for one element; a function of libc without arguments."""
    step = te.reduce_axis((0, repetitions), "step")
    called = tvm.tirx.call_extern("int32", function, 0).astype("float32")
    body = te.compute((1,), lambda _i: te.sum(called + step.astype("float32") * 0.0, axis=step), name="B")
    a = te.placeholder((1,), name="A")
    module = tvm.IRModule({"main": te.create_prim_func([a, body]).with_attr("global_symbol", "main")})
    library = link(tvm.tirx.build(module, target=parse_target(target)), target)
    specs = (TensorSpec((1,), "float32"),) * 2
    return Artifact("scale", Candidate("scale", 0, function, (repetitions,)), library, specs, specs, (1,), (), "", 0.0)


@pytest.fixture(params=[True, False], ids=["realtime", "usual"])
def served(request: pytest.FixtureRequest, native_target: str) -> Iterator[tuple[RpcDevice, bool]]:
    with DeviceServer(threads=2, realtime=request.param) as server:
        device = RpcDevice(DeviceConfig(name="d", target=native_target, threads=2), server.host, server.port)
        yield device, request.param
        device.close()


def test_kernels_run_at_the_priority_asked_for_where_it_is_allowed(
    served: tuple[RpcDevice, bool], native_target: str
) -> None:
    device, realtime = served
    # The kernel tells the scheduling policy of the thread that runs it.
    artifact = kernel(native_target, "sched_getscheduler", 1)
    bench = device._connection.workbench()
    module = bench.load(artifact.library)
    arguments = bench.arguments(artifact, module, False)
    evaluate = bench.session.function("fleet_tune.evaluate")
    from devices.timing.evaluator import EvaluationRequest

    evaluate(module, "main", EvaluationRequest(RULE, math.inf, "cpu").to_json(), *arguments)
    expected = FIFO if realtime and not refusal() else OTHER
    assert arguments[1].numpy()[0] == expected
    # Outside of micro-batches it is as it was.
    module["main"](*arguments)
    assert arguments[1].numpy()[0] == OTHER


def test_a_server_that_may_not_says_so() -> None:
    lines: list[str] = []
    with DeviceServer(threads=1, realtime=True, log=lines.append) as server:
        # What the process said before it took the first client has been read by the time that a second one is served.
        device = RpcDevice(DeviceConfig(name="d", target="native"), server.host, server.port)
        device.ping()
        device.close()
    said = [line for line in lines if "usual priority" in line]
    assert len(said) == (1 if refusal() else 0)


def test_a_kernel_that_spins_is_ended_and_the_next_one_is_measured(
    served: tuple[RpcDevice, bool], native_target: str
) -> None:
    device, _ = served
    good = kernel(native_target, "sched_getscheduler", 1)
    oracle = Artifact("scale", None, good.library, good.args, good.args, (1,), (), "", 0.0)
    device.add_oracle(oracle)
    spun = device.measure(MeasureRequest(kernel(native_target, "sched_getscheduler", 2**28), math.inf, RULE))
    assert spun.outcome is Outcome.RUN_TIMEOUT
    patient = replace(RULE, timeout_secs=60.0)  # another process has to start
    assert device.measure(MeasureRequest(good, 0.0, patient)).outcome is Outcome.OK


def test_the_session_tells_its_vitals(served: tuple[RpcDevice, bool]) -> None:
    device, _ = served
    assert device.vitals() == {}  # not connected yet
    device.ping()
    found = device.vitals()
    assert json.loads(json.dumps(found)) == found
    assert set(found) <= {"temperature_celsius", "clock_hertz"}
