"""Devices behind a TVM RPC tracker: real trackers and servers, which go away and come back."""

from __future__ import annotations

import json
import math
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.client.rpc_device import RpcDevice
from devices.protocol import Artifact, MeasureRequest
from devices.rpc.tracker import TrackerClient, TrackerError, request_server
from devices.server.registration import TrackerAddress, TrackerRegistration
from devices.server.server import DeviceServer
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Measurement, Outcome, StopRule
from fleet_tune.base.errors import DeviceUnreachableError
from tests.helpers.kernels import MakeArtifact
from tests.helpers.waiting import wait_until

RULE = StopRule(micro_batch_secs=0.001, max_batches=3, timeout_secs=60.0)
ROOT = Path(__file__).parents[3]

TRACKER = """
import ctypes, sys
sys.modules["torch"] = None  # TVM would load it
ctypes.CDLL(None).prctl(1, 9)
from tvm.rpc.tracker import PopenTrackerServerState
print(PopenTrackerServerState("127.0.0.1", int(sys.argv[1]), int(sys.argv[1]) + 1, silent=True).port, flush=True)
"""
PLAIN_SERVER = """
import sys
sys.modules["torch"] = None
from tvm import rpc
server = rpc.Server("127.0.0.1", 19700, 19800, tracker_addr=("127.0.0.1", int(sys.argv[1])), key="plain", silent=True)
print(server.port, flush=True)
sys.stdin.readline()
server.terminate()
"""


class TrackerProcess:
    """TVM's own tracker, as a process that can be killed and started again."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", TRACKER, str(self.port)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert int(self._process.stdout.readline()) == self.port

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def tracker(free_port: int) -> Iterator[TrackerProcess]:
    running = TrackerProcess(free_port)
    yield running
    running.kill()


def listed(port: int, key: str) -> tuple[int, int]:
    with TrackerClient("127.0.0.1", port, 60.0) as connection:
        return connection.count(key)


def client(port: int, target: str, oracle: Artifact, key: str = "cpu", wait_secs: float = 60.0) -> RpcDevice:
    config = DeviceConfig(name="tracked", target=target, threads=1)
    device = RpcDevice(
        config,
        "127.0.0.1",
        port,
        decide="policies.measuring.adaptive_stopping:decide",
        connect_timeout_secs=wait_secs,
        tracker_key=key,
    )
    device.add_oracle(oracle)
    return device


def measure(device: RpcDevice, artifact: Artifact) -> Measurement:
    return device.measure(MeasureRequest(artifact, math.inf, RULE))


def test_a_registered_server_is_found_held_and_given_back(
    tracker: TrackerProcess, native_target: str, make_artifact: MakeArtifact
) -> None:
    oracle = make_artifact("ok", oracle=True)
    lines: list[str] = []
    with DeviceServer(threads=1, tracker=TrackerAddress("127.0.0.1", tracker.port, "cpu"), log=lines.append):
        wait_until(lambda: listed(tracker.port, "cpu") == (1, 1), "the server is registered and free")
        device = client(tracker.port, native_target, oracle)
        assert measure(device, make_artifact("ok")).verified
        assert measure(device, make_artifact("crash")).outcome is Outcome.RUN_ERROR
        assert measure(device, make_artifact("ok")).verified
        # A server is listed anew after a crash: its entry of before is gone a moment later.
        wait_until(lambda: listed(tracker.port, "cpu") == (1, 0), "the server is listed, and held")
        second = client(tracker.port, native_target, oracle, wait_secs=2.0)
        lost = measure(second, make_artifact("ok"))
        assert lost.outcome is Outcome.DEVICE_LOST
        assert "of 1 server(s) registered under 'cpu' none became free" in lost.detail
        device.close()
        wait_until(lambda: listed(tracker.port, "cpu") == (1, 1), "the server is free again")
        patient = client(tracker.port, native_target, oracle)
        assert measure(patient, make_artifact("ok")).verified
        patient.close()
    assert lines == [f"registered as 'cpu' at the tracker 127.0.0.1:{tracker.port}"]


def test_a_client_that_comes_directly_takes_the_offer_back(tracker: TrackerProcess) -> None:
    from devices.client.session import RpcSession

    with DeviceServer(threads=1, tracker=TrackerAddress("127.0.0.1", tracker.port, "cpu")) as server:
        wait_until(lambda: listed(tracker.port, "cpu") == (1, 1), "the server is registered and free")
        session = RpcSession("127.0.0.1", server.port, timeout_secs=60)
        wait_until(lambda: listed(tracker.port, "cpu") == (1, 0), "the tracker has nothing to hand out")
        session.close()
        wait_until(lambda: listed(tracker.port, "cpu") == (1, 1), "the server is offered again")


def test_a_match_key_that_nobody_uses_is_replaced(tracker: TrackerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    from devices.server import registration

    monkeypatch.setattr(registration, "UNUSED_SECS", 0.05)
    monkeypatch.setattr(registration, "PING_SECS", 0.02)
    registered = TrackerRegistration(TrackerAddress("127.0.0.1", tracker.port, "cpu"), 12345, lambda _line: None)
    first = request_server("127.0.0.1", tracker.port, "cpu", 60)
    assert (first.host, first.port) == ("127.0.0.1", 12345)
    second = request_server("127.0.0.1", tracker.port, "cpu", 60)
    assert second.match_key != first.match_key
    assert not registered.accepts(first.match_key)
    assert not registered.accepts("")


def test_a_tracker_that_is_killed_loses_nothing(
    tracker: TrackerProcess, native_target: str, make_artifact: MakeArtifact
) -> None:
    lines: list[str] = []
    oracle = make_artifact("ok", oracle=True)
    with DeviceServer(threads=1, tracker=TrackerAddress("127.0.0.1", tracker.port, "cpu"), log=lines.append):
        wait_until(lambda: listed(tracker.port, "cpu") == (1, 1), "the server is registered")
        device = client(tracker.port, native_target, oracle)
        assert measure(device, make_artifact("ok")).verified
        tracker.kill()
        assert measure(device, make_artifact("ok")).verified  # the session does not depend on it
        assert measure(device, make_artifact("crash")).outcome is Outcome.RUN_ERROR
        assert measure(device, make_artifact("ok")).verified  # nor does coming back to the same server
        wait_until(lambda: any("not registered" in line for line in lines), "a line says that the tracker is away")
        tracker.start()
        wait_until(lambda: listed(tracker.port, "cpu") == (1, 0), "registered again, and still held")
        device.close()
        wait_until(lambda: listed(tracker.port, "cpu") == (1, 1), "offered at the new tracker")
    assert sum("not registered" in line for line in lines) == 1
    assert lines[-1] == lines[0]


def test_a_server_waits_for_a_tracker_that_comes_later(free_port: int) -> None:
    lines: list[str] = []
    with DeviceServer(threads=1, tracker=TrackerAddress("127.0.0.1", free_port, "cpu"), log=lines.append):
        wait_until(lambda: bool(lines), "a line says that there is no tracker")
        assert "cannot be reached" in lines[0]
        late = TrackerProcess(free_port)
        try:
            wait_until(lambda: listed(free_port, "cpu") == (1, 1), "registered")
        finally:
            late.kill()


def test_two_servers_of_one_key_are_two_devices(
    tracker: TrackerProcess, native_target: str, make_artifact: MakeArtifact
) -> None:
    where = TrackerAddress("127.0.0.1", tracker.port, "cpu")
    oracle = make_artifact("ok", oracle=True)
    with DeviceServer(threads=1, tracker=where) as one, DeviceServer(threads=1, tracker=where) as other:
        devices = [client(tracker.port, native_target, oracle) for _ in range(2)]
        assert all(measure(device, make_artifact("ok")).verified for device in devices)
        assert {device._connection.held for device in devices} == {("127.0.0.1", one.port), ("127.0.0.1", other.port)}
        for device in devices:
            device.close()


def test_a_plain_server_behind_a_tracker(
    tracker: TrackerProcess, native_target: str, make_artifact: MakeArtifact
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PLAIN_SERVER, str(tracker.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        device = client(tracker.port, native_target, make_artifact("ok", oracle=True), key="plain")
        measured = measure(device, make_artifact("ok"))
        assert (measured.outcome, measured.verified) == (Outcome.OK, True), measured
        assert measure(device, make_artifact("wrong")).outcome is Outcome.WRONG_OUTPUT
        device.close()
        process.communicate("end\n", timeout=60)


def test_a_tracker_without_such_a_server_is_reported(
    tracker: TrackerProcess, native_target: str, make_artifact: MakeArtifact
) -> None:
    device = client(tracker.port, native_target, make_artifact("ok", oracle=True), key="orin", wait_secs=2.0)
    with pytest.raises(DeviceUnreachableError, match="no server is registered under 'orin'"):
        device.fingerprint()


def test_a_tracker_that_is_away_or_silent_is_given_up(free_port: int) -> None:
    with pytest.raises(TrackerError, match="cannot be reached"):
        request_server("127.0.0.1", free_port, "cpu", 0.3)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(TrackerError, match="did not answer in time"):
        request_server("127.0.0.1", silent.getsockname()[1], "cpu", 0.3)


def answer(body: bytes) -> bytes:
    """What a tracker sends: its magic number, and one message."""
    return struct.pack("<ii", 0x2F271, len(body)) + body


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        (struct.pack("<i", 7), "is not a TVM RPC tracker"),
        (struct.pack("<ii", 0x2F271, -5), "a message of -5 bytes"),
        (struct.pack("<ii", 0x2F271, 1 << 30), "a message of 1073741824 bytes"),
        (struct.pack("<ii", 0x2F271, 4) + b"[0,[", "not JSON"),
        (struct.pack("<ii", 0x2F271, 4) + b"[-1]", "answered a request"),
        (struct.pack("<ii", 0x2F271, 14) + b'[-1,["h",1,2]]', "refused"),
        (answer(b"[" * 1_000_000), "nested too deeply"),
        (answer(b"[" * 300 + b"]" * 300), "answered a request"),
        (answer(b"9" * 5000), "not JSON"),
        (answer(b'[0,["host",1e999,"key"]]'), "answered a request"),
        (answer(b'[0,["host",70000,"key"]]'), "answered a request"),
        (answer(b'[0,["host",9090,"key -name=other"]]'), "answered a request"),
        (answer(b'[0,["a host",9090,"key"]]'), "answered a request"),
        (b"", "closed the connection"),
    ],
)
def test_what_is_no_tracker_is_told_so(says: bytes, problem: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def speak() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4)
                connection.sendall(says)
                if len(says) > 4:
                    connection.recv(1000)

        threading.Thread(target=speak, daemon=True).start()
        with pytest.raises(TrackerError, match=problem):
            request_server("127.0.0.1", listening.getsockname()[1], "cpu", 60)


def test_tvms_own_client_is_served_through_the_tracker(tracker: TrackerProcess) -> None:
    from tvm import rpc

    with DeviceServer(threads=1, tracker=TrackerAddress("127.0.0.1", tracker.port, "cpu")):
        session = rpc.connect_tracker("127.0.0.1", tracker.port).request("cpu", session_timeout=60)
        assert json.loads(session.get_function("fleet_tune.describe")())["threads"] == 1
