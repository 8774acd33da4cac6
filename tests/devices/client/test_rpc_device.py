"""Measurements over RPC against real servers, in the way of candidates that crash, hang, cheat or come too late."""

from __future__ import annotations

import math
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from devices.client.measuring import LoadedCandidate
from devices.client.rpc_device import RpcDevice
from devices.client.workbench import Workbench
from devices.protocol import Artifact, MeasureRequest, TensorSpec
from devices.server.server import DeviceServer
from devices.targets import TargetError
from devices.timing.evaluator import Evaluation
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Candidate, Measurement, Outcome, StopRule
from fleet_tune.base.errors import DeviceUnreachableError, ProbeError
from tests.helpers.kernels import MakeArtifact

RULE = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=60.0)
SHORT = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=0.3)


@pytest.fixture
def device(server: DeviceServer, native_target: str, make_artifact: MakeArtifact) -> Iterator[RpcDevice]:
    device = RpcDevice(DeviceConfig(name="test", target=native_target, threads=2), "127.0.0.1", server.port)
    device.add_oracle(make_artifact("ok", oracle=True))
    yield device
    device.close()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the CPU of this test is an x86")
def test_a_target_whose_code_the_processor_cannot_run_is_named(server: DeviceServer) -> None:
    # The only CPU to fuse multiplications and additions by FMA4, which none has had since.
    target = {"kind": "llvm", "mcpu": "bdver1"}
    device = RpcDevice(DeviceConfig(name="test", target=target, threads=2), "127.0.0.1", server.port)
    with pytest.raises(TargetError, match=r"lacks instructions of bdver1.*SIGILL"):
        device.fingerprint()
    device.close()


def measure(device: RpcDevice, artifact: Artifact, rule: StopRule = RULE, best: float = math.inf) -> Measurement:
    return device.measure(MeasureRequest(artifact, best, rule))


def test_measures_and_verifies(device: RpcDevice, make_artifact: MakeArtifact) -> None:
    measured = measure(device, make_artifact("ok"))
    assert measured.outcome is Outcome.OK, measured
    assert measured.verified
    assert measured.stopped == "maximum"
    assert len(measured.run_secs) == 3
    assert measured.build_secs == 0.25
    assert 0 < measured.cost_secs < 0.1
    assert measured.measure_secs > 0


def test_only_a_new_incumbent_is_verified(device: RpcDevice, make_artifact: MakeArtifact) -> None:
    slower = measure(device, make_artifact("wrong"), best=1e-12)
    assert (slower.outcome, slower.verified) == (Outcome.OK, False)


@pytest.mark.parametrize(
    ("what", "detail"),
    [("wrong", "1024 of 1024 values differ"), ("nan", "NaN"), ("partial", "512 of 1024 values are NaN")],
)
def test_a_wrong_result_never_becomes_the_incumbent(
    device: RpcDevice, make_artifact: MakeArtifact, what: str, detail: str
) -> None:
    measured = measure(device, make_artifact(what))
    assert measured.outcome is Outcome.WRONG_OUTPUT
    assert detail in measured.detail
    assert not measured.run_secs


def test_what_is_not_written_shows_also_where_the_oracle_has_no_numbers(
    device: RpcDevice, make_artifact: MakeArtifact
) -> None:
    device.add_oracle(make_artifact("nan", oracle=True, task_id="nan"))
    assert measure(device, make_artifact("nan", task_id="nan")).verified
    measured = measure(device, make_artifact("nan-partial", task_id="nan"))
    assert measured.outcome is Outcome.WRONG_OUTPUT
    assert "512 of 1024 values are NaN" in measured.detail


def test_tensors_are_placed_anew_where_that_is_asked_for(
    device: RpcDevice, make_artifact: MakeArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = make_artifact("packed")
    kept: list[Any] = []  # alive, so that no handle is given twice
    handles: list[tuple[int, ...]] = []
    packed = Workbench._packed

    def noting(bench: Workbench, artifact: Artifact, module: Any, tensors: list[Any]) -> list[Any]:
        kept.append(list(tensors))
        handles.append(tuple(id(tensor) for tensor in tensors))
        return packed(bench, artifact, module, tensors)

    monkeypatch.setattr(Workbench, "_packed", noting)
    for placed_anew in (False, False, True, True, False):
        measured = device.measure(MeasureRequest(artifact, 0.0, RULE, placed_anew=placed_anew))
        assert measured.outcome is Outcome.OK, measured
    assert handles[0] == handles[1]
    assert not set(handles[1]) & set(handles[2])
    assert not set(handles[2]) & set(handles[3])
    assert handles[3] == handles[4]


class PoisonedGpu:
    """A GPU that an illegal access of one kernel takes from the session: what runs there later fails with its error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bad: Artifact | None = None
        self._lost: list[Any] = []
        evaluate, load = LoadedCandidate.evaluate, Workbench.load

        def evaluating(candidate: LoadedCandidate, rule: StopRule, incumbent_secs: float) -> Evaluation:
            session = candidate.bench.session
            with session.deadline(60.0):
                if candidate._artifact is self.bad:
                    self._lost.append(session)
                self._check(session)
            return evaluate(candidate, rule, incumbent_secs)

        def loading(bench: Workbench, library: bytes) -> Any:
            with bench.session.deadline(60.0):
                self._check(bench.session)
            return load(bench, library)

        monkeypatch.setattr(LoadedCandidate, "evaluate", evaluating)
        monkeypatch.setattr(Workbench, "load", loading)

    def _check(self, session: Any) -> None:
        if session in self._lost:
            raise RuntimeError("CUDAError: cuLaunchKernel failed with error: CUDA_ERROR_ILLEGAL_ADDRESS")

    def lose(self, session: Any) -> None:
        self._lost.append(session)


def test_a_kernel_that_loses_the_gpu_is_to_blame_and_the_next_one_is_not(
    device: RpcDevice, make_artifact: MakeArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = PoisonedGpu(monkeypatch)
    gpu.bad = make_artifact("packed")
    assert measure(device, make_artifact("ok")).verified
    measured = measure(device, gpu.bad)
    assert measured.outcome is Outcome.RUN_ERROR
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in measured.detail
    assert measure(device, make_artifact("ok")).verified


def test_a_gpu_that_was_lost_before_a_kernel_ran_is_no_fault_of_it(
    device: RpcDevice, make_artifact: MakeArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = PoisonedGpu(monkeypatch)
    gpu.lose(device._connection.workbench().session)
    assert measure(device, make_artifact("ok")).verified


def test_a_kernel_is_not_to_blame_for_inputs_that_an_earlier_one_has_overwritten(
    device: RpcDevice, make_artifact: MakeArtifact
) -> None:
    assert measure(device, make_artifact("ok")).verified
    overwritten = np.full(1024, 7.0, np.float32)
    for key, (tensors, _) in device._connection.workbench()._kept._kept.items():
        if key[0] == "checked":  # type: ignore[index]
            tensors[0].copyfrom(overwritten)
    assert measure(device, make_artifact("ok")).verified
    assert measure(device, make_artifact("wrong")).outcome is Outcome.WRONG_OUTPUT


def allow_oracles(device: RpcDevice, monkeypatch: pytest.MonkeyPatch, secs: float) -> None:
    """Oracles have so long beside what their operations take, whatever is sent."""
    device._config = device._config.model_copy(update={"oracle_secs": secs})
    monkeypatch.setattr("devices.client.output_check.sent_bytes", lambda _: 0)


def test_an_oracle_has_the_time_that_its_operations_take(
    device: RpcDevice, make_artifact: MakeArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes three seconds, with half a second beside its operations."""
    allow_oracles(device, monkeypatch, 0.5)
    device.add_oracle(make_artifact("slow", oracle=True, task_id="large", flop=2e8))
    assert measure(device, make_artifact("ok", task_id="large")).verified


def test_an_oracle_that_takes_longer_than_anybody_thought_has_twice_the_time_next(
    device: RpcDevice, make_artifact: MakeArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_oracles(device, monkeypatch, 2.0)
    device.add_oracle(make_artifact("slow", oracle=True, task_id="large"))
    measured = [measure(device, make_artifact("ok", task_id="large")) for _ in range(4)]
    # The device answers everything else: it is not lost, and what was measured counts.
    assert [each.outcome for each in measured] == [Outcome.OK] * 4
    assert [each.verified for each in measured] == [False, True, True, True]


@pytest.mark.parametrize("measured_first", [False, True])
def test_an_oracle_that_ends_its_session_is_given_up_and_no_kernel_is_blamed(
    device: RpcDevice, make_artifact: MakeArtifact, measured_first: bool
) -> None:
    device.add_oracle(make_artifact("crash", oracle=True, task_id="large"))
    if not measured_first:
        told = [device.run_oracle("large") for _ in range(2)]
        assert all("its unscheduled program ends its process" in each and "SIGSEGV" in each for each in told)
    for _ in range(3):
        measured = measure(device, make_artifact("ok", task_id="large"))
        assert (measured.outcome, measured.verified) == (Outcome.OK, False)
    assert "SIGSEGV" in device.run_oracle("large")
    assert measure(device, make_artifact("ok")).verified  # nor is the device


def test_an_oracle_that_is_slower_than_its_limit_is_given_up_and_its_kernels_are_not_verified(
    device: RpcDevice, make_artifact: MakeArtifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_oracles(device, monkeypatch, 0.1)
    device.add_oracle(make_artifact("slow", oracle=True, task_id="large"))
    told = [device.run_oracle("large") for _ in range(3)]
    assert told[:2] == [f"its unscheduled program did not end within {secs:.0f} s" for secs in (0.1, 0.2)]
    assert told[2] == told[1]
    measured = measure(device, make_artifact("ok", task_id="large"))
    assert (measured.outcome, measured.verified) == (Outcome.OK, False)
    allow_oracles(device, monkeypatch, 60.0)  # a busy machine takes longer than the limit above for any oracle
    device.add_oracle(make_artifact("ok", oracle=True, task_id="other"))
    assert device.run_oracle("other") == ""
    assert measure(device, make_artifact("ok", task_id="other")).verified, "the device is as good as before"


def test_packed_weights_are_packed_by_the_library(device: RpcDevice, make_artifact: MakeArtifact) -> None:
    measured = measure(device, make_artifact("packed"))
    assert (measured.outcome, measured.verified) == (Outcome.OK, True), measured


def test_kernels_of_negative_inputs_are_checked_on_positive_ones(
    device: RpcDevice, make_artifact: MakeArtifact
) -> None:
    device.add_oracle(make_artifact("roots", oracle=True, task_id="roots"))
    assert measure(device, make_artifact("roots", task_id="roots")).verified
    assert measure(device, make_artifact("ok", task_id="roots")).outcome is Outcome.WRONG_OUTPUT


@pytest.mark.parametrize(("what", "word"), [("crash", "SIGSEGV"), ("abort", "SIGABRT")])
def test_a_crashing_candidate_costs_only_itself(
    device: RpcDevice, make_artifact: MakeArtifact, what: str, word: str
) -> None:
    assert measure(device, make_artifact("ok")).verified
    crashed = measure(device, make_artifact(what))
    assert crashed.outcome is Outcome.RUN_ERROR, crashed
    assert word in crashed.detail
    assert measure(device, make_artifact("ok")).verified


def test_a_hanging_candidate_is_ended_at_its_timeout(
    device: RpcDevice, make_artifact: MakeArtifact, server: DeviceServer
) -> None:
    hung = measure(device, make_artifact("hang"), SHORT)
    assert hung.outcome is Outcome.RUN_TIMEOUT, hung
    assert measure(device, make_artifact("ok")).verified
    assert len(psutil.Process(server.child_pid).children()) == 1  # the hanging process is gone


def test_a_library_that_does_not_load_is_an_error_of_the_candidate(
    device: RpcDevice, make_artifact: MakeArtifact
) -> None:
    failed = measure(device, make_artifact("unlinked"))
    assert failed.outcome is Outcome.RUN_ERROR, failed
    assert "no_such_function_anywhere" in failed.detail
    assert measure(device, make_artifact("ok")).verified


@pytest.mark.parametrize("fresh", [False, True])
def test_a_candidate_whose_session_was_killed_is_measured_again(
    device: RpcDevice, make_artifact: MakeArtifact, server: DeviceServer, fresh: bool
) -> None:
    assert measure(device, make_artifact("ok")).verified
    if fresh:
        device.close()
    killed: list[int] = []
    killer = threading.Thread(target=kill_sessions, args=(server, 1, killed))
    killer.start()
    measured = measure(device, make_artifact("slow"), StopRule(timeout_secs=120))
    killer.join(60)
    assert len(killed) == 1
    assert (measured.outcome, measured.verified) == (Outcome.OK, True), measured


def test_a_candidate_whose_session_was_killed_twice_is_not_blamed(
    device: RpcDevice, make_artifact: MakeArtifact, server: DeviceServer
) -> None:
    assert measure(device, make_artifact("ok")).verified
    killed: list[int] = []
    killer = threading.Thread(target=kill_sessions, args=(server, 2, killed))
    killer.start()
    measured = measure(device, make_artifact("hang"), StopRule(timeout_secs=120))
    killer.join(60)
    assert len(killed) == 2
    assert measured.outcome is Outcome.KILLED, measured
    assert "SIGKILL" in measured.detail
    assert measure(device, make_artifact("ok")).verified


def kill_sessions(server: DeviceServer, times: int, killed: list[int]) -> None:
    """Kill so many sessions, each once the kernel that it runs says that it has started; their ids go to ``killed``."""
    seen: set[Path] = set()
    deadline = time.monotonic() + 60
    while len(killed) < times and time.monotonic() < deadline:
        running = set(server.folder.glob("session-*/started")) - seen
        if running:
            seen |= running
            (session,) = psutil.Process(server.child_pid).children()
            session.kill()
            killed.append(session.pid)
        threading.Event().wait(0.01)


def kill_when_hanging(server: DeviceServer, victim: psutil.Process) -> None:
    """Kill the process once the kernel that hangs says that it has started."""
    assert server.folder.is_dir()
    deadline = time.monotonic() + 60
    while not list(server.folder.glob("session-*/started")) and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    victim.kill()


def test_a_killed_server_process_comes_back(
    device: RpcDevice, make_artifact: MakeArtifact, server: DeviceServer
) -> None:
    assert measure(device, make_artifact("ok")).verified
    for _ in range(2):
        child = psutil.Process(server.child_pid)
        (session,) = child.children()
        child.kill()
        _, alive = psutil.wait_procs([session], timeout=60)
        assert not alive
        assert measure(device, make_artifact("ok")).verified


def test_a_server_that_comes_back_with_other_threads_is_refused(native_target: str, free_port: int) -> None:
    """Its probe is of each core: it takes no longer."""
    device = RpcDevice(DeviceConfig(name="test", target=native_target), "127.0.0.1", free_port)
    try:
        with DeviceServer(port=free_port, threads=2):
            assert device.fingerprint().threads == 2
        with DeviceServer(port=free_port, threads=2):
            assert device.probe_secs() > 0
        other = r"come back with TVM \S+ on 1 CPUs, and this run began with TVM \S+ on 2"
        with DeviceServer(port=free_port, threads=1), pytest.raises(ProbeError, match=other):
            device.probe_secs()
    finally:
        device.close()


def test_a_server_process_killed_during_a_run_is_no_fault_of_the_candidate(
    device: RpcDevice, make_artifact: MakeArtifact, server: DeviceServer
) -> None:
    assert measure(device, make_artifact("ok")).verified
    serving = psutil.Process(server.child_pid)
    killer = threading.Thread(target=kill_when_hanging, args=(server, serving))
    killer.start()
    measured = measure(device, make_artifact("slow"), StopRule(timeout_secs=120))
    killer.join(60)
    assert not psutil.pid_exists(serving.pid)
    assert (measured.outcome, measured.verified) == (Outcome.OK, True), measured


def test_an_unreachable_server_is_a_lost_device(
    free_port: int, native_target: str, make_artifact: MakeArtifact
) -> None:
    config = DeviceConfig(name="gone", target=native_target)
    device = RpcDevice(config, "127.0.0.1", free_port, connect_timeout_secs=0.3)
    device.add_oracle(make_artifact("ok", oracle=True))
    assert measure(device, make_artifact("ok")).outcome is Outcome.DEVICE_LOST
    with pytest.raises(DeviceUnreachableError, match="gone"):
        device.fingerprint()


def test_a_server_that_says_nothing_is_a_lost_device(native_target: str, make_artifact: MakeArtifact) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = DeviceConfig(name="silent", target=native_target)
        device = RpcDevice(config, "127.0.0.1", silent.getsockname()[1], connect_timeout_secs=0.3)
        device.add_oracle(make_artifact("ok", oracle=True))
        assert measure(device, make_artifact("ok")).outcome is Outcome.DEVICE_LOST


def test_a_server_busy_with_another_client_is_waited_for(
    device: RpcDevice, server: DeviceServer, native_target: str, make_artifact: MakeArtifact
) -> None:
    assert measure(device, make_artifact("ok")).verified
    config = DeviceConfig(name="second", target=native_target)
    second = RpcDevice(config, "127.0.0.1", server.port, connect_timeout_secs=0.3)
    second.add_oracle(make_artifact("ok", oracle=True))
    lost = measure(second, make_artifact("ok"))
    assert lost.outcome is Outcome.DEVICE_LOST
    assert f"the device server at 127.0.0.1:{server.port} is busy with another client since 0.3 s" in lost.detail
    device.close()
    patient = RpcDevice(config, "127.0.0.1", server.port, connect_timeout_secs=60)
    patient.add_oracle(make_artifact("ok", oracle=True))
    assert measure(patient, make_artifact("ok")).verified
    patient.close()


def test_tensors_are_kept_within_the_limit(
    server: DeviceServer, native_target: str, make_artifact: MakeArtifact
) -> None:
    config = DeviceConfig(name="small", target=native_target)
    device = RpcDevice(config, "127.0.0.1", server.port, cache_bytes=20_000)
    for number in range(6):
        device.add_oracle(make_artifact("ok", oracle=True, task_id=f"task-{number}"))
        assert measure(device, make_artifact("ok", task_id=f"task-{number}")).verified
    kept = device._connection.workbench()._kept._kept.values()
    assert 0 < sum(tensor.numpy().nbytes for tensors, _ in kept for tensor in tensors) <= 20_000
    device.close()


def test_uploaded_files_are_removed(device: RpcDevice, make_artifact: MakeArtifact, server: DeviceServer) -> None:
    assert measure(device, make_artifact("ok")).verified
    assert server.folder.is_dir()
    assert [path for path in server.folder.rglob("*") if path.is_file()] == []


def test_wrong_use_is_an_error(device: RpcDevice, make_artifact: MakeArtifact) -> None:
    with pytest.raises(ValueError, match="candidate"):
        measure(device, make_artifact("ok", oracle=True))
    with pytest.raises(ValueError, match="unknown-task"):
        measure(device, make_artifact("ok", task_id="unknown-task"))
    with pytest.raises(ValueError, match="oracle"):
        device.add_oracle(make_artifact("ok"))


PLAIN_SERVER = """
import sys
from tvm import rpc
server = rpc.Server(host="127.0.0.1", port=int(sys.argv[1]), port_end=int(sys.argv[1]) + 100, silent=True)
print(server.port, flush=True)
sys.stdin.readline()
server.terminate()
"""


@pytest.fixture(scope="module")
def plain_port() -> Iterator[int]:
    """A plain TVM RPC server, as the tvm package starts it, with no code of ours."""
    environment = {**os.environ, "TVM_NUM_THREADS": "2"}
    with subprocess.Popen(
        [sys.executable, "-c", PLAIN_SERVER, "19500"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGKILL)


def test_a_plain_tvm_server_is_measured_from_the_client(
    plain_port: int, native_target: str, make_artifact: MakeArtifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "stopping_rule.py").write_text(
        "def decide(run_secs, rule, incumbent_secs):\n    return 'converged' if len(run_secs) == 2 else None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = DeviceConfig(name="plain", target=native_target)
    device = RpcDevice(config, "127.0.0.1", plain_port, decide="stopping_rule:decide")
    device.add_oracle(make_artifact("ok", oracle=True))
    measured = measure(device, make_artifact("ok"))
    assert (measured.outcome, measured.stopped, measured.verified) == (Outcome.OK, "converged", True), measured
    assert measure(device, make_artifact("wrong")).outcome is Outcome.WRONG_OUTPUT
    fingerprint = device.fingerprint()
    assert fingerprint.threads == 2
    assert fingerprint.abstraction.peak_flops > 1e9
    device.close()


def test_a_plain_server_is_told_to_have_no_library(plain_port: int, native_target: str) -> None:
    device = RpcDevice(DeviceConfig(name="plain", target=native_target, library="onednn"), "127.0.0.1", plain_port)
    with pytest.raises(TargetError, match=r"device plain: its server .* cannot load onednn") as told:
        device.fingerprint()
    assert "fleet-tune device serve" in told.value.next_step
    device.close()


def test_integer_inputs_reach_the_device(device: RpcDevice, native_target: str) -> None:
    import tvm
    from tvm import te

    from devices.builds.linking import link
    from devices.targets import parse_target

    table, ids = te.placeholder((5, 8), name="T"), te.placeholder((16,), "int64", name="I")
    rows = te.compute((16, 8), lambda i, j: table[ids[i], j], name="R")
    function = te.create_prim_func([table, ids, rows]).with_attr("global_symbol", "main")
    library = link(tvm.tirx.build(tvm.IRModule({"main": function}), parse_target(native_target)), native_target)
    specs = (TensorSpec((5, 8), "float32"), TensorSpec((16,), "int64"), TensorSpec((16, 8), "float32"))

    def artifact(candidate: Candidate | None) -> Artifact:
        return Artifact("take", candidate, library, specs, specs, (2,), (), "", 0.1)

    device.add_oracle(artifact(None))
    assert measure(device, artifact(Candidate("take", 0, "s", (1,)))).verified
