"""A GPU behind a device server, and measurements of known kernels on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from devices.client.rpc_device import RpcDevice
from devices.protocol import MeasureRequest
from devices.server.server import DeviceServer
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Measurement, StopRule
from tests.helpers.gpu_kernels import gpu_artifact

SMALL, LARGE = 1 << 10, 1 << 21
"""Elements of the kernels' arguments."""


@dataclass(frozen=True)
class ServedGpu:
    """A GPU behind a device server of ours."""

    target: str
    """Canonical text."""
    server: DeviceServer

    def connect(self) -> RpcDevice:
        """Make a client that knows the oracles of the small and of the large kernel."""
        config = DeviceConfig(name="gpu", target=self.target, candidate_secs=60.0)
        device = RpcDevice(config, "127.0.0.1", self.server.port)
        for n in (SMALL, LARGE):
            device.add_oracle(gpu_artifact(self.target, n=n, oracle=True))
        return device

    def measure(
        self, device: RpcDevice, rule: StopRule, what: str = "ok", n: int = SMALL, best: float = math.inf
    ) -> Measurement:
        """Measure a kernel of :func:`gpu_artifact` on a device that :meth:`connect` made."""
        return device.measure(MeasureRequest(gpu_artifact(self.target, what, n), best, rule))
