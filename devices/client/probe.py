"""The probe of a device: a millisecond of arithmetic on all cores, always the same.

It moves no memory. A stream through memory would measure how much of the last-level cache other processes use at the
moment, and the times of kernels do not follow that.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import tvm

from devices.client import probe_kernels
from devices.client.workbench import Workbench
from devices.targets import vector_bits
from devices.timing.evaluator import EvaluationRequest, decode_evaluation
from fleet_tune.base.domain import StopRule

# The best of three single runs of a millisecond: a disturbance seldom hits all of them.
_RUNS = 3
_ROWS = 64  # rows of the arithmetic for each core: half a millisecond on a server

# Compiled once for each kind of device that this process knows.
_arithmetic = functools.lru_cache(maxsize=16)(probe_kernels.arithmetic)


class Probe:
    """The probe's kernel, loaded on the device of ``bench`` with its tensors.

    The constructor and :meth:`secs` block on the device. Their deadlines allow for the slowest device, and for
    ``probe_secs`` of its timeouts. Both raise SessionLostError, and TVM's errors if a kernel does not load or run.
    """

    def __init__(self, bench: Workbench, target: str) -> None:
        self.bench = bench
        with bench.session.deadline(bench.timeouts.probe_secs):
            threads = int(bench.session.function("runtime.NumThreads")()) if bench.kind == "cpu" else 0
            cores, lanes = parallelism(bench, target, threads)
        kernel = _arithmetic(target, cores, lanes, _ROWS)
        self._slowest_secs = kernel.slowest_secs
        with bench.session.deadline(bench.timeouts.probe_secs):
            self._tensors = [tvm.runtime.tensor(np.ones(shape, np.float32), bench.device) for shape in kernel.shapes]
            self._module: Any = bench.load(kernel.library)

    def secs(self) -> float:
        """Return the seconds of the best of a few single runs."""
        return min(self._run_secs())

    def _run_secs(self) -> tuple[float, ...]:
        bench, module, tensors = self.bench, self._module, self._tensors
        most_secs = (_RUNS + 1) * (bench.timeouts.probe_secs + self._slowest_secs)  # one run is not counted
        with bench.session.deadline(most_secs):
            if bench.session.ours:  # under the same conditions as candidates, real-time priority among them
                rule = StopRule(
                    micro_batch_secs=1e-9,
                    min_batches=_RUNS,
                    max_batches=_RUNS,
                    race_factor=math.inf,
                    timeout_secs=most_secs,
                )
                request = EvaluationRequest(rule, math.inf, bench.kind).to_json()
                answer = bench.session.function("fleet_tune.evaluate")(module, "main", request, *tensors)
                return decode_evaluation(answer).run_secs
            timer = module.time_evaluator("main", bench.device, number=1, repeat=_RUNS)
            return tuple(timer(*tensors).results)


def parallelism(bench: Workbench, target: str, threads: int) -> tuple[int, int]:
    """Return the cores (or multiprocessors) and the lanes of a vector (or threads of a warp) that the probe is made
    for."""
    if bench.kind == "cuda":
        return int(bench.device.multi_processor_count), int(bench.device.warp_size)
    return threads, vector_bits(target) // 32
