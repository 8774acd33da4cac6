"""Faults of candidates, processes and networks, injected for real: what becomes of the candidate and of the device."""

from __future__ import annotations

import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from bench.devices.faulty_proxy import FaultyProxy
from devices.client.rpc_device import RpcDevice
from devices.client.session import RpcSession, SessionLostError
from devices.host.limits.confinement import SessionLimits
from devices.protocol import Artifact, MeasureRequest
from devices.server.server import DeviceServer
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Measurement, Outcome, StopRule
from tests.helpers.kernels import MakeArtifact
from tests.helpers.waiting import wait_until

ROOT = Path(__file__).parents[3]
RULE = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=5.0)
LONG = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=60.0)


@pytest.fixture(scope="module")
def small_server() -> Iterator[DeviceServer]:
    """A server whose sessions may allocate a gigabyte."""
    with DeviceServer(threads=2, limits=SessionLimits(upload_bytes=32 << 20, memory_bytes=1 << 30)) as server:
        yield server


def connect(port: int, target: str, oracle: Artifact, wait_secs: float = 15.0) -> RpcDevice:
    device = RpcDevice(
        DeviceConfig(name="test", target=target, threads=2), "127.0.0.1", port, connect_timeout_secs=wait_secs
    )
    device.add_oracle(oracle)
    return device


@pytest.fixture
def device(small_server: DeviceServer, native_target: str, make_artifact: MakeArtifact) -> Iterator[RpcDevice]:
    device = connect(small_server.port, native_target, make_artifact("ok", oracle=True))
    yield device
    device.close()


def measure(device: RpcDevice, artifact: Artifact, rule: StopRule = RULE) -> Measurement:
    return device.measure(MeasureRequest(artifact, math.inf, rule))


def while_a_candidate_runs(
    device: RpcDevice, server: DeviceServer, make_artifact: MakeArtifact, fault: Callable[[], object]
) -> Measurement:
    """Measure a candidate that would run for an hour, and have the fault happen once it runs."""
    assert measure(device, make_artifact("ok")).verified

    def act() -> None:
        wait_until(lambda: bool(list(server.folder.glob("session-*/started"))), "the candidate runs")
        fault()

    faulting = threading.Thread(target=act)
    faulting.start()
    measured = measure(device, make_artifact("hang"), LONG)
    faulting.join(30)
    return measured


def session_of(server: DeviceServer) -> psutil.Process:
    (session,) = psutil.Process(server.child_pid).children()
    return session


@pytest.mark.parametrize("what", ["allocate", "outside"])
def test_what_asks_for_too_much_or_writes_out_of_bounds_is_a_run_error(
    device: RpcDevice, make_artifact: MakeArtifact, what: str
) -> None:
    assert measure(device, make_artifact("ok")).verified
    failed = measure(device, make_artifact(what))
    assert failed.outcome is Outcome.RUN_ERROR, failed
    assert "SIGSEGV" in failed.detail
    assert measure(device, make_artifact("ok")).verified


def test_a_candidate_that_damages_its_input_misleads_nobody(device: RpcDevice, make_artifact: MakeArtifact) -> None:
    assert measure(device, make_artifact("overwrite")).verified  # what it returns is right
    assert measure(device, make_artifact("ok")).verified
    assert measure(device, make_artifact("wrong")).outcome is Outcome.WRONG_OUTPUT
    assert measure(device, make_artifact("ok")).verified


def test_a_candidate_that_stops_its_own_process_costs_itself_alone(
    device: RpcDevice, make_artifact: MakeArtifact
) -> None:
    halted = measure(device, make_artifact("halt"), LONG)
    assert halted.outcome is Outcome.DEVICE_LOST, halted
    assert "SIGSTOP" in halted.detail
    assert measure(device, make_artifact("ok")).verified


def test_a_stopped_session_is_ended_and_its_candidate_not_blamed(
    device: RpcDevice, small_server: DeviceServer, make_artifact: MakeArtifact
) -> None:
    lost = while_a_candidate_runs(
        device, small_server, make_artifact, lambda: session_of(small_server).send_signal(signal.SIGSTOP)
    )
    assert lost.outcome is Outcome.DEVICE_LOST, lost
    assert "SIGSTOP" in lost.detail
    assert measure(device, make_artifact("ok")).verified


def test_a_session_that_is_stopped_for_a_moment_goes_on(
    device: RpcDevice, small_server: DeviceServer, make_artifact: MakeArtifact
) -> None:
    assert measure(device, make_artifact("ok")).verified
    session = session_of(small_server)
    session.suspend()
    session.resume()
    assert measure(device, make_artifact("ok")).verified
    assert session.is_running()


def test_a_stopped_serving_process_is_replaced(native_target: str, make_artifact: MakeArtifact) -> None:
    lines: list[str] = []
    with DeviceServer(threads=2, log=lines.append) as server:
        device = connect(server.port, native_target, make_artifact("ok", oracle=True))
        stopped = server.child_pid
        lost = while_a_candidate_runs(device, server, make_artifact, lambda: os.kill(stopped, signal.SIGSTOP))
        assert lost.outcome is Outcome.DEVICE_LOST, lost
        assert measure(device, make_artifact("ok")).verified
        assert server.child_pid != stopped
        assert any("sent nothing" in line for line in lines)
        device.close()


def test_a_stopped_supervisor_disturbs_nobody(native_target: str, make_artifact: MakeArtifact) -> None:
    command = [sys.executable, "-m", "fleet_tune", "device", "serve", "--no-key", "--port", "0", "--threads", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline().split(":")[1].split()[0])
        device = connect(port, native_target, make_artifact("ok", oracle=True))
        server.send_signal(signal.SIGSTOP)
        try:
            assert measure(device, make_artifact("crash")).outcome is Outcome.RUN_ERROR
            assert measure(device, make_artifact("ok")).verified
        finally:
            server.send_signal(signal.SIGCONT)
            server.terminate()
        assert server.wait(20) == 0
        device.close()


@pytest.fixture
def proxy(small_server: DeviceServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(small_server.port) as running:
        yield running


def test_a_device_behind_a_forwarded_port(proxy: FaultyProxy, native_target: str, make_artifact: MakeArtifact) -> None:
    device = connect(proxy.port, native_target, make_artifact("ok", oracle=True))
    assert measure(device, make_artifact("ok")).verified
    assert measure(device, make_artifact("crash")).outcome is Outcome.RUN_ERROR
    assert measure(device, make_artifact("ok")).verified
    device.close()


@pytest.mark.parametrize("how", ["reset", "hole"])
def test_a_cut_network_loses_the_device_for_a_moment(
    proxy: FaultyProxy, small_server: DeviceServer, native_target: str, make_artifact: MakeArtifact, how: str
) -> None:
    device = connect(proxy.port, native_target, make_artifact("ok", oracle=True))
    lost = while_a_candidate_runs(device, small_server, make_artifact, lambda: proxy.order(how))
    assert lost.outcome is Outcome.DEVICE_LOST, lost
    if how == "hole":
        assert "no sign of life" in lost.detail
    assert measure(device, make_artifact("ok")).verified
    device.close()


def test_between_candidates_a_cut_connection_is_made_anew(
    proxy: FaultyProxy, native_target: str, make_artifact: MakeArtifact
) -> None:
    device = connect(proxy.port, native_target, make_artifact("ok", oracle=True))
    for how in ("reset", "hole"):
        assert measure(device, make_artifact("ok")).verified
        proxy.order(how)
        assert measure(device, make_artifact("ok")).verified
    device.close()


def test_a_network_that_is_down_is_a_lost_device_until_it_is_up(
    proxy: FaultyProxy, native_target: str, make_artifact: MakeArtifact
) -> None:
    device = connect(proxy.port, native_target, make_artifact("ok", oracle=True), wait_secs=0.5)
    assert measure(device, make_artifact("ok")).verified
    proxy.order("down")
    assert measure(device, make_artifact("ok")).outcome is Outcome.DEVICE_LOST
    proxy.order("up")
    wait_until(lambda: measure(device, make_artifact("ok")).outcome is Outcome.OK, "the device is back")
    device.close()


def test_a_client_that_comes_back_replaces_its_own_old_session(small_server: DeviceServer) -> None:
    old = RpcSession("127.0.0.1", small_server.port, timeout_secs=20, name="me")
    other = socket.create_connection(("127.0.0.1", small_server.port), timeout=20)
    other.sendall(struct.pack("<ii", 0xFF271, 7) + b"client:")
    new = RpcSession("127.0.0.1", small_server.port, timeout_secs=20, name="me")
    assert new.alive()
    assert not old.alive()
    assert new.function("fleet_tune.last_exit")() == ""
    new.close()
    assert other.recv(4) == struct.pack("<i", 0xFF271)  # who waited is served when the device is free
    other.close()
    old.close()


def test_a_busy_server_is_not_watched_to_death(small_server: DeviceServer) -> None:
    """A call that takes longer than the silence that is allowed, on a server that lives."""
    session = RpcSession("127.0.0.1", small_server.port, timeout_secs=20)
    with session.deadline(20):
        assert session.gives_sign_of_life(5.0)
        assert session.function("fleet_tune.describe")()
    process = session_of(small_server)
    process.kill()
    with pytest.raises(SessionLostError), session.deadline(20):
        session.function("fleet_tune.describe")()
    session.close()
