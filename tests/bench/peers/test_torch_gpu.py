"""PyTorch's sides, on the CPU: what does not need a GPU of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.gpu.kept_lines import KeptLines
from bench.peers.accelerators import Call, Host
from bench.peers.example import load_example
from bench.peers.torch_gpu import measure, measure_each
from bench.result import BenchError

TINY = "bench/networks/gpu_kernels.py:tiny"


class Watched(Host):
    """Notes what its graphs compute, and with which settings."""

    runs = 1

    def __init__(self) -> None:
        self.graphs: list[tuple[torch.dtype, bool, bool, int]] = []

    def graph(self, call: Call, calls: int) -> Call:
        out = call()
        assert isinstance(out, torch.Tensor)
        last = out.ndim == 4 and out.is_contiguous(memory_format=torch.channels_last)
        self.graphs.append((out.dtype, torch.backends.cuda.matmul.allow_tf32, last, calls))
        return super().graph(call, calls)


@pytest.fixture
def convolution() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return torch.nn.Conv2d(4, 6, 3), (torch.randn(2, 4, 9, 9),)


def test_each_side_has_its_arithmetic_and_order(convolution: tuple[torch.nn.Module, tuple[torch.Tensor, ...]]) -> None:
    on = Watched()
    sides = ("graph", "graph-tf32", "graph-fp16-channels-last", "eager")
    found = measure(on, convolution, sides, calls=5)
    assert on.graphs == [
        (torch.float32, False, False, 5),
        (torch.float32, True, False, 5),
        (torch.float16, False, True, 5),
    ]
    assert not torch.backends.cuda.matmul.allow_tf32
    assert set(found["sides"]) == set(found["calls"]) == set(sides)
    assert found["best_secs"] == found["sides"]["graph"] > 0
    assert convolution[0].weight.dtype is torch.float32  # the sides that follow get what this one got


def test_seconds_are_those_of_one_call(convolution: tuple[torch.nn.Module, tuple[torch.Tensor, ...]]) -> None:
    class Clock(Host):
        def busy_secs(self, call: Call) -> float:
            call()
            return 20.0

    found = measure(Clock(), convolution, ("graph", "eager"), calls=20)
    assert found["sides"] == {"graph": 1.0, "eager": 20.0}


def test_a_side_that_fails_leaves_the_others(convolution: tuple[torch.nn.Module, tuple[torch.Tensor, ...]]) -> None:
    class NoGraphs(Host):
        def graph(self, call: Call, calls: int) -> Call:
            raise RuntimeError(f"{calls} of {call.__name__}: not permitted when stream is capturing")

    found = measure(NoGraphs(), convolution, ("graph-tf32", "eager"))
    assert found["sides"]["graph-tf32"] is None
    assert found["sides"]["eager"] > 0
    assert found["reasons"] == {"graph-tf32": "RuntimeError: 1 of <lambda>: not permitted when stream is capturing"}
    assert not torch.backends.cudnn.allow_tf32
    with pytest.raises(BenchError, match="graph-int8 is no side"):
        measure(NoGraphs(), convolution, ("graph-int8",))


def test_kernels_are_timed_one_by_one_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    on = Watched()
    found = measure_each(on, load_example(TINY), ("graph-channels-last",), 2, KeptLines(path))
    assert set(found) == {"product of 32", "3x3 16 on 8"}
    assert [last for _, _, last, _ in on.graphs] == [False, True]
    again = Watched()
    assert measure_each(again, load_example(TINY), ("graph-channels-last",), 2, KeptLines(path)) == found
    assert not again.graphs
    with pytest.raises(BenchError, match="--each is for kernels side by side"):
        measure_each(on, load_example("examples/networks.py:mlp"), ("graph",), 1, KeptLines(path))
