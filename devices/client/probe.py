"""The probe of a device: a few milliseconds of arithmetic and of memory traffic, always the same."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import tvm

from devices.client import probe_kernels
from devices.client.workbench import Workbench
from devices.protocol import TensorSpec
from devices.targets import vector_bits
from devices.timing.evaluator import EvaluationRequest, decode_evaluation
from fleet_tune.base.domain import StopRule

# The best of three single runs of a millisecond: a disturbance seldom hits all of them.
_RUNS = 3
_ROWS = 64  # rows of the arithmetic for each core: half a millisecond on a server
_TRIAD_BYTES = {"cpu": 8 << 20, "cuda": 64 << 20}  # on a GPU beyond its caches, and longer than its events are exact

# Compiled once for each kind of device that this process knows.
_arithmetic = functools.lru_cache(maxsize=16)(probe_kernels.arithmetic)
_triad = functools.lru_cache(maxsize=16)(probe_kernels.triad)
_fill = functools.lru_cache(maxsize=16)(probe_kernels.fill)


class Probe:
    """The probe's two kernels, loaded on the device of ``bench`` with their tensors.

    Making one and running it block on the device, each for as long as the slowest device may take, plus ``probe_secs``
    of its patience. Both raise SessionLostError, and TVM's errors where a kernel does not load or run.
    """

    def __init__(self, bench: Workbench, target: str) -> None:
        self.bench = bench
        with bench.session.deadline(bench.patience.probe_secs):
            threads = int(bench.session.function("runtime.NumThreads")()) if bench.kind == "cpu" else 0
            cores, lanes = parallelism(bench, target, threads)
        kernel = _arithmetic(target, cores, lanes, _ROWS)
        elements = _TRIAD_BYTES[bench.kind] // 4
        fill, triad = _fill(target, elements, lanes), _triad(target, elements, lanes)
        with bench.session.deadline(3 * (bench.patience.probe_secs + fill.slowest_secs)):
            ones = [tvm.runtime.tensor(np.ones(shape, np.float32), bench.device) for shape in kernel.shapes]
            make = bench.load(fill.library)
            vectors = [bench.empty(TensorSpec((elements,), "float32")) for _ in range(3)]
            for vector in vectors:
                make["main"](vector)
            self._parts: list[tuple[Any, list[Any], float]] = [
                (bench.load(kernel.library), ones, kernel.slowest_secs),
                (bench.load(triad.library), vectors, triad.slowest_secs),
            ]

    def secs(self) -> float:
        """Return the geometric mean of the seconds of its two parts: both count alike, however fast the device is."""
        times = [min(self._run_secs(*part)) for part in self._parts]
        return math.sqrt(math.prod(times))

    def _run_secs(self, module: Any, tensors: list[Any], slowest_secs: float) -> tuple[float, ...]:
        """Return the seconds of single runs. ``slowest_secs``: one run on the slowest device."""
        bench = self.bench
        most_secs = (_RUNS + 1) * (bench.patience.probe_secs + slowest_secs)  # one run is not counted
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
