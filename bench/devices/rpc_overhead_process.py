"""Our device, reached through a tracker: one measurement for each line on the standard input.

Run in a process of its own: ``python -m bench.devices.rpc_overhead_process TRACKER_PORT KEY``. For a line ``check``
the measurement also compares the output with the oracle's, as for a new incumbent.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from unittest import mock

import tvm

from bench.machine import cores
from bench.peers.metaschedule import matmul_relu
from bench.peers.rpc_runner import SIZE
from bench.processes import die_with_parent
from bench.result import BenchError
from devices.builds.linking import link
from devices.client import rpc_device
from devices.client.measuring import LoadedCandidate
from devices.protocol import Artifact, MeasureRequest, TensorSpec
from devices.targets import parse_target, resolve_target
from devices.timing.evaluator import Evaluation
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Candidate, Outcome, StopRule

_TASK = "matmul"


class _Timed(LoadedCandidate):
    """Keeps the seconds that the last evaluation took on the device, in ``kernel_secs``."""

    kernel_secs = math.nan

    def evaluate(self, rule: StopRule, incumbent_secs: float) -> Evaluation:
        evaluation = super().evaluate(rule, incumbent_secs)
        _Timed.kernel_secs = evaluation.device_secs
        return evaluation


def main(arguments: Sequence[str]) -> None:
    die_with_parent()
    tracker_port, key = int(arguments[0]), arguments[1]
    target = resolve_target("native", cores())
    library = link(tvm.tirx.build(matmul_relu(SIZE), target=parse_target(target)), target)
    specs = (TensorSpec((SIZE, SIZE), "float32"),) * 3

    def artifact(candidate: Candidate | None) -> Artifact:
        return Artifact(_TASK, candidate, library, specs, specs, (2,), (), "", 0.1)

    config = DeviceConfig(name="bench", target="native", threads=cores())
    mock.patch.object(rpc_device, "LoadedCandidate", _Timed).start()
    device = rpc_device.RpcDevice(
        config, "127.0.0.1", tracker_port, decide="policies.measuring.adaptive_stopping:decide", tracker_key=key
    )
    device.add_oracle(artifact(None))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        # Neither value is an incumbent to race against, so every measurement runs to its end. A candidate that costs
        # less than infinity would be the new incumbent, so it is checked; with 0 it is not.
        incumbent_secs = math.inf if line.strip() == "check" else 0.0
        started = time.perf_counter()
        measured = device.measure(MeasureRequest(artifact(Candidate(_TASK, 0, "plain", (SIZE,))), incumbent_secs))
        wall_secs = time.perf_counter() - started
        if measured.outcome is not Outcome.OK:
            raise BenchError(f"the measurement failed: {measured}")
        print(json.dumps({"wall_secs": wall_secs, "kernel_secs": _Timed.kernel_secs}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
