"""A device of the fleet file that a tracker hands out, as its actor opens it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from devices.device_factory import open_device
from devices.rpc.tracker import listed
from devices.server.registration import TrackerAddress
from devices.server.server import DeviceServer
from fleet_tune.base.config.fleet_file import DeviceConfig

TRACKER = """
import ctypes, sys
sys.modules["torch"] = None
ctypes.CDLL(None).prctl(1, 9)
from tvm.rpc.tracker import PopenTrackerServerState
print(PopenTrackerServerState("127.0.0.1", int(sys.argv[1]), int(sys.argv[1]) + 1, silent=True).port, flush=True)
"""


@pytest.fixture
def tracker_port(free_port: int) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", TRACKER, str(free_port)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == free_port
        yield free_port
        process.kill()


def test_a_device_is_opened_through_its_tracker(tracker_port: int) -> None:
    config = DeviceConfig(name="board", connect=f"tracker://127.0.0.1:{tracker_port}/cpu", threads=1)
    with (
        DeviceServer(threads=1, tracker=TrackerAddress("127.0.0.1", tracker_port, "cpu")),
        open_device(config) as device,
    ):
        assert device.fingerprint().threads == 1
        assert device.ping() > 0
        assert listed("127.0.0.1", tracker_port, "cpu", 30.0) == 1
        assert listed("127.0.0.1", tracker_port, "others", 30.0) == 0


@pytest.mark.parametrize(
    ("connect", "local"),
    [
        ("local", True),
        ("127.0.0.1:9090", True),
        ("tracker://127.0.0.1:9190/cpu", True),
        ("tracker://10.0.0.2:9190/cpu", False),
        ("10.0.0.2:9090", False),
    ],
)
def test_a_device_of_this_host_is_measured_in_quiet_windows(connect: str, local: bool) -> None:
    assert DeviceConfig(name="a", connect=connect).shares_host is local
