"""The processors that PyTorch runs on in a benchmark, and how calls are timed there: a GPU, or the CPU for tests."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Protocol

import torch

Call = Callable[[], object]

_WARM_RUNS, _RUNS = 20, 100


class Accelerator(Protocol):
    """A processor that PyTorch runs on."""

    device: str
    """PyTorch's name of the device."""
    name: str
    """Product name."""

    def busy_secs(self, call: Call) -> float:
        """Return the median seconds that a call keeps the processor busy."""

    def wait_secs(self, call: Call) -> float:
        """Return the median seconds that a caller waits for a call."""

    def graph(self, call: Call, calls: int) -> Call:
        """Return one call that makes ``calls`` calls. On a GPU the host leaves no gaps between them."""


class Cuda:
    """The first NVIDIA GPU."""

    device = "cuda"

    def __init__(self) -> None:
        self.name = torch.cuda.get_device_name()

    def busy_secs(self, call: Call) -> float:
        """Time with CUDA events, after warm-up runs."""
        times: list[float] = []
        for number in range(_WARM_RUNS + _RUNS):
            begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
            begin.record()
            call()
            end.record()
            end.synchronize()
            if number >= _WARM_RUNS:
                times.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(times)

    def wait_secs(self, call: Call) -> float:
        return _median_secs(call, torch.cuda.synchronize, _RUNS)

    def graph(self, call: Call, calls: int) -> Call:
        """Capture a CUDA graph."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call,unused-ignore]
        with torch.cuda.stream(stream):  # libraries must choose kernels and allocate before the capture
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return graph.replay


class Host:
    """This machine's CPU. It has no graphs: the calls of a graph are made one after the other."""

    device = "cpu"
    name = "CPU"
    runs = 3

    def busy_secs(self, call: Call) -> float:
        return _median_secs(call, lambda: None, self.runs)

    def wait_secs(self, call: Call) -> float:
        return self.busy_secs(call)

    def graph(self, call: Call, calls: int) -> Call:
        def calls_in_turn() -> None:
            for _ in range(calls):
                call()

        return calls_in_turn


def _median_secs(call: Call, wait: Callable[[], None], runs: int) -> float:
    times: list[float] = []
    for _ in range(runs):
        began = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
