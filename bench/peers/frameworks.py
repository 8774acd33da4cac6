"""Runs one network in one framework, in its own process. A benchmark starts one process for each side and times them in
turn.

``python -m bench.peers.frameworks --side eager --model examples/networks.py:resnet18 --threads 2`` prints one JSON line
when it is ready: the network is warm, and its outputs were compared with the expected ones. Each line of standard input
has the least seconds to run for. The process answers it with ``{"secs": [...]}``: the seconds of each single run.

Sides: ``eager`` (PyTorch), ``compile`` (torch.compile with freezing), ``ort`` (ONNX Runtime), ``openvino`` (with
default settings: it computes float32 networks in bfloat16 if the CPU supports that), ``openvino-f32`` (told to keep
float32), ``ours`` (a folder written by ``fleet-tune tune``), ``metaschedule`` (a folder written by
:mod:`bench.peers.metaschedule_network`). Each side takes its inputs and returns its outputs in its own form (torch's or
TVM's tensors, or arrays).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from bench.peers.example import Example, Outputs, as_arrays, load
from bench.processes import die_with_parent
from bench.result import BenchError
from devices.networks.frameworks import runners
from devices.networks.frameworks.child import time_runs
from devices.networks.frameworks.runners import Loaded, NetworkSource, Run

_WARM_SECS = 2.0
_WARM_RUNS = 5
_FEWEST_RUNS = 10
# With a larger error a side does not compute the same network, and its time means nothing. Relative to the largest
# output.
_LARGEST_ERROR = 1e-2
# For quantised networks, where the last bit of a float sum may change a quantum, and for sides that choose bfloat16.
_LARGEST_LOW_PRECISION_ERROR = 0.1


def ours(example: Example, folder: Path | None) -> Callable[[], Any]:
    """Return a runner of the network that fleet-tune compiled into ``folder``."""
    import fleet_tune

    if folder is None:
        raise BenchError("the side 'ours' needs --folder")
    network = fleet_tune.load(folder)
    inputs = example.inputs
    return lambda: network(*inputs)


def metaschedule(example: Example, folder: Path | None) -> Callable[[], Any]:
    """Return a runner of the network that :mod:`bench.peers.metaschedule_network` compiled into ``folder``."""
    import tvm

    from bench.peers.metaschedule_network import load

    if folder is None:
        raise BenchError("the side 'metaschedule' needs --folder")
    network = load(folder)
    tensors = [tvm.runtime.tensor(tensor.numpy()) for tensor in example.inputs]
    return lambda: network(*tensors)


def _in(framework: Callable[[NetworkSource], Loaded]) -> Callable[[Example, Path | None], Run]:
    """Return the side of a framework that needs no folder."""
    return lambda example, _: framework(example.source)(example.inputs)


SIDES: dict[str, Callable[[Example, Path | None], Run]] = {
    "eager": _in(runners.eager),
    "compile": _in(runners.compiled),
    "ort": _in(runners.onnx_runtime),
    "openvino": _in(runners.openvino),
    "openvino-f32": _in(partial(runners.openvino, INFERENCE_PRECISION_HINT="f32")),
    "ours": ours,
    "metaschedule": metaschedule,
}


def relative_error(actual: Outputs, expected: Outputs) -> float:
    """Return the largest absolute difference over all outputs, divided by the largest absolute expected value.

    Raises :class:`BenchError` if the shapes differ.
    """
    if [a.shape for a in actual] != [e.shape for e in expected]:
        raise BenchError(f"outputs of shapes {[a.shape for a in actual]}, expected {[e.shape for e in expected]}")
    scale = max(float(np.abs(e).max()) for e in expected)
    return max(float(np.abs(a - e).max()) for a, e in zip(actual, expected, strict=True)) / scale


@click.command()
@click.option("--side", type=click.Choice(list(SIDES)), required=True)
@click.option("--model", required=True, help="file.py:function or an ONNX file, relative to the repository.")
@click.option("--threads", type=click.IntRange(min=1), required=True)
@click.option("--folder", type=click.Path(exists=True, path_type=Path), help="A result folder, for the side 'ours'.")
@click.option("--low-precision", is_flag=True, help="The network in the folder computes in fewer bits.")
@click.option("--fewest-runs", type=click.IntRange(min=1), default=_FEWEST_RUNS, help="Of a block.")
@click.option("--unchecked", is_flag=True, help="Run it whatever its outputs are: their error is told.")
def main(
    side: str, model: str, threads: int, folder: Path | None, low_precision: bool, fewest_runs: int, unchecked: bool
) -> None:
    """Answer each line of standard input with one block of timed runs."""
    die_with_parent()
    torch.set_num_threads(threads)
    example = load(model)
    low_precision |= example.module is None or side == "openvino"
    limit = _LARGEST_LOW_PRECISION_ERROR if low_precision else _LARGEST_ERROR
    with torch.inference_mode():
        expected = example.expected
        started = time.perf_counter()
        run = SIDES[side](example, folder)
        error = relative_error(as_arrays(run()), expected)
        ready_secs = time.perf_counter() - started
        if not unchecked and not error < limit:
            raise BenchError(f"{side} differs from what is expected by {error:.2g} of the largest output")
        time_runs(run, _WARM_SECS, min(_WARM_RUNS, fewest_runs))
        print(json.dumps({"side": side, "ready_secs": ready_secs, "relative_error": error}), flush=True)
        for line in sys.stdin:
            print(json.dumps({"secs": time_runs(run, float(line), fewest_runs)}), flush=True)


if __name__ == "__main__":
    main()
