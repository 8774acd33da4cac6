"""Seconds that PyTorch takes on the GPU for one network, by its own means.

``python -m bench.peers.torch_gpu --model bench/networks/workloads.py:conv2d_nhwc`` prints one line of JSON: ``sides``
has the median seconds that a run of each side takes the GPU, by its events; ``calls`` those that a caller waits for a
call, by the host's clock, as our networks are timed; ``reasons`` why a side has none. ``best_secs`` is that of
``graph`` on the GPU: a kernel of ours is timed without gaps of the host between its runs, and so is this. None with a
``reason`` where this PyTorch has no CUDA.

=================  =========================================================================
``eager``          single calls, float32, TF32 off
``graph``          the same calls as one CUDA graph
``graph-tf32``     with products in TF32, which is not float32: ten bits of mantissa
``graph-fp16``     the network converted to float16
``compile``        ``torch.compile(mode="max-autotune")``, float32, TF32 off
``compile-fp16``   the same of the network converted to float16
=================  =========================================================================

``--side`` takes some of them only: the compiler takes minutes.
"""

from __future__ import annotations

import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import click
import torch
from torch import Tensor, nn

from bench.peers.example import load_example
from bench.processes import die_with_parent

_WARM_RUNS, _RUNS = 20, 100


SIDES = ("eager", "graph", "graph-tf32", "graph-fp16", "compile", "compile-fp16")


def measure(model: str, sides: Sequence[str] = SIDES) -> dict[str, Any]:
    """Runs the network of ``file.py:function`` on each of ``sides``."""
    if not torch.cuda.is_available():
        return {"best_secs": None, "reason": f"PyTorch {torch.__version__} cannot use a GPU here"}
    network, inputs = load_example(model)
    network, inputs = network.cuda(), tuple(tensor.cuda() for tensor in inputs)
    halves = copy.deepcopy(network).half(), tuple(_halved(tensor) for tensor in inputs)
    prepared: dict[str, Callable[[], Callable[[], object]]] = {
        "eager": lambda: lambda: network(*inputs),
        "graph": lambda: _graph(network, inputs),
        "graph-tf32": lambda: _with_tf32(lambda: _graph(network, inputs)),
        "graph-fp16": lambda: _graph(*halves),
        "compile": lambda: _compiled(network, inputs),
        "compile-fp16": lambda: _compiled(*halves),
    }
    found: dict[str, float | None] = {}
    calls: dict[str, float] = {}
    reasons = {}
    with torch.inference_mode():
        _use_tf32(False)
        for name in sides:
            try:
                call = prepared[name]()
                found[name], calls[name] = _median_secs(call), _median_call_secs(call)
            except Exception as error:  # whatever a compiler or a kernel of PyTorch raises: the other sides count
                found[name], reasons[name] = None, f"{type(error).__name__}: {error}"[:300]
    return {
        "best_secs": found.get("graph"),
        "sides": found,
        "calls": calls,
        "reasons": reasons,
        "runs": _RUNS,
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(),
    }


def _median_secs(call: Callable[[], object]) -> float:
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


def _median_call_secs(call: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _graph(network: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], None]:
    """A call of the network as one CUDA graph."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call,unused-ignore]
    with torch.cuda.stream(stream):  # libraries choose their kernels and allocate before the capture
        for _ in range(3):
            network(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        network(*inputs)
    return graph.replay


def _with_tf32(prepare: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """The call that ``prepare`` makes with TF32 switched on: a graph keeps the kernels that it was captured with."""
    _use_tf32(True)
    try:
        return prepare()
    finally:
        _use_tf32(False)


def _use_tf32(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def _compiled(network: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    compiled = torch.compile(network, mode="max-autotune")
    return lambda: compiled(*inputs)


def _halved(tensor: Tensor) -> Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


@click.command()
@click.option("--model", required=True, help="file.py:function, relative to the repository.")
@click.option("--side", "sides", multiple=True, type=click.Choice(SIDES), help="Default: all.")
def main(model: str, sides: tuple[str, ...]) -> None:
    """Prints the figures as one line of JSON, the last line of output."""
    die_with_parent()
    click.echo(json.dumps(measure(model, sides or SIDES)))


if __name__ == "__main__":
    main()
