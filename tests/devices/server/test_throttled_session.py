"""A device server in a real control group with a quota: what a measurement says of it."""

from __future__ import annotations

import math
from pathlib import Path

import psutil

from devices.client.rpc_device import RpcDevice
from devices.protocol import MeasureRequest
from devices.server.server import DeviceServer
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Outcome, StopRule
from tests.helpers.kernels import MakeArtifact


def test_a_measurement_has_the_share_of_periods_in_which_its_group_stood_still(
    make_artifact: MakeArtifact, native_target: str, little_of_a_cpu: Path
) -> None:
    # Real-time threads are under no quota. The rule makes the kernel use up the little that there is.
    rule = StopRule(warm_up_secs=1.0, micro_batch_secs=0.05, timeout_secs=60.0)
    with DeviceServer(threads=1, realtime=False) as server:
        for process in psutil.Process().children(recursive=True):
            if "session_server" in " ".join(process.cmdline()):
                little_of_a_cpu.write_text(str(process.pid))
        device = RpcDevice(DeviceConfig(name="test", target=native_target, threads=1), "127.0.0.1", server.port)
        try:
            device.add_oracle(make_artifact(oracle=True))
            measured = device.measure(MeasureRequest(make_artifact(), math.inf, rule))
        finally:
            device.close()
    assert (measured.outcome, measured.detail) == (Outcome.OK, "")
    assert measured.throttled > 0.3
    assert measured.error > 0.3
