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
from devices.timing.evaluator import decode_evaluation, encode_request
from fleet_tune.domain import StopRule

# The best of three single runs: what is in the way of one run of a millisecond is seldom in that of all.
_RULE = StopRule(micro_batch_secs=1e-9, min_batches=3, max_batches=3, race_factor=math.inf)
_ROWS = 64  # of the arithmetic, for each core: half a millisecond on a server
_TRIAD_BYTES = 8 << 20

# Compiled once for each kind of device that this process knows.
_arithmetic = functools.lru_cache(maxsize=16)(probe_kernels.arithmetic)
_triad = functools.lru_cache(maxsize=16)(probe_kernels.triad)
_fill = functools.lru_cache(maxsize=16)(probe_kernels.fill)


class Probe:
    """The probe's two kernels, loaded on the device of ``bench`` with their tensors.

    Making one and running it block on the device: call it inside ``session.deadline``. Both raise what TVM raises where
    a kernel does not load or run.
    """

    def __init__(self, bench: Workbench, target: str) -> None:
        self.bench = bench
        threads = int(bench.session.function("runtime.NumThreads")()) if bench.kind == "cpu" else 0
        cores, lanes = parallelism(bench, target, threads)
        kernel = _arithmetic(target, cores, lanes, _ROWS)
        ones = [tvm.runtime.tensor(np.ones(shape, np.float32), bench.device) for shape in kernel.shapes]
        elements = _TRIAD_BYTES // 4
        make = bench.load(_fill(target, elements, lanes).library)
        vectors = [bench.empty(TensorSpec((elements,), "float32")) for _ in range(3)]
        for vector in vectors:
            make["main"](vector)
        self._parts: list[tuple[Any, list[Any]]] = [
            (bench.load(kernel.library), ones),
            (bench.load(_triad(target, elements, lanes).library), vectors),
        ]

    def secs(self) -> float:
        """Geometric mean of the seconds of its two parts: each has half of the say, however fast the device is."""
        times = [min(self._run_secs(module, tensors)) for module, tensors in self._parts]
        return math.sqrt(math.prod(times))

    def _run_secs(self, module: Any, tensors: list[Any]) -> tuple[float, ...]:
        bench = self.bench
        if bench.session.ours:  # under the same conditions as candidates, real-time priority among them
            request = encode_request(_RULE, math.inf, bench.kind)
            answer = bench.session.function("fleet_tune.evaluate")(module, "main", request, *tensors)
            return decode_evaluation(answer).run_secs
        timer = module.time_evaluator("main", bench.device, number=1, repeat=_RULE.max_batches)
        return tuple(timer(*tensors).results)


def parallelism(bench: Workbench, target: str, threads: int) -> tuple[int, int]:
    """Cores (or multiprocessors) and lanes of a vector (or threads of a warp) that the probe is made for."""
    if bench.kind == "cuda":
        return int(bench.device.multi_processor_count), int(bench.device.warp_size)
    return threads, vector_bits(target) // 32
