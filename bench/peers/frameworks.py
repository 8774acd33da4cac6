"""Runs one network in one framework, in a process of its own, and times it in turn with the others.

``python -m bench.peers.frameworks --side eager --model examples/networks.py:resnet18 --threads 2`` prints one JSON line
when it is ready (warm, with the network's outputs compared with PyTorch's), then answers each line of standard input,
the least seconds to run for, with ``{"secs": [...]}``: the seconds of each single run. Sides: ``eager`` (PyTorch),
``compile`` (torch.compile with freezing), ``ort`` (ONNX Runtime), ``ours`` (a folder written by ``fleet-tune tune``),
``metaschedule`` (one written by :mod:`bench.peers.metaschedule_network`). Each side gets its input in its own form
(torch's or TVM's tensors, or numpy arrays for ONNX Runtime) and returns its outputs so.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from bench.peers.example import load_example
from bench.processes import die_with_parent
from bench.result import BenchError

Outputs = list[np.ndarray]
_WARM_SECS = 2.0
_WARM_RUNS = 5
_FEWEST_RUNS = 10
# Above it a side computes something else than PyTorch, and its time means nothing. Relative to the largest output.
_LARGEST_ERROR = 1e-2


def eager(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _folder: Path | None) -> Callable[[], Any]:
    return lambda: model(*inputs)


def compiled(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _folder: Path | None) -> Callable[[], Any]:
    """torch.compile with freezing: weights become constants and are packed (needs a C++ compiler)."""
    import torch._inductor.config as inductor

    inductor.freezing = True  # type: ignore[attr-defined,unused-ignore]
    frozen = torch.compile(model)
    return lambda: frozen(*inputs)


def onnx_runtime(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _folder: Path | None) -> Callable[[], Any]:
    import onnxruntime as ort

    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        path = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, inputs, path, dynamo=False)
        options = ort.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {slot.name: tensor.numpy() for slot, tensor in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feed)


def ours(_model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path | None) -> Callable[[], Any]:
    """The network that fleet-tune compiled into ``folder``."""
    import fleet_tune

    if folder is None:
        raise BenchError("the side 'ours' needs --folder")
    network = fleet_tune.load(folder)
    return lambda: network(*inputs)


def metaschedule(_model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path | None) -> Callable[[], Any]:
    """The network that MetaSchedule tuned into ``folder``."""
    import tvm

    from bench.peers.metaschedule_network import load

    if folder is None:
        raise BenchError("the side 'metaschedule' needs --folder")
    network = load(folder)
    tensors = [tvm.runtime.tensor(tensor.numpy()) for tensor in inputs]
    return lambda: network(*tensors)


SIDES = {"eager": eager, "compile": compiled, "ort": onnx_runtime, "ours": ours, "metaschedule": metaschedule}


def _as_arrays(value: Any) -> Outputs:
    values = [value] if hasattr(value, "shape") else list(value)
    return [item.numpy() if hasattr(item, "numpy") else np.asarray(item) for item in values]


def relative_error(actual: Outputs, expected: Outputs) -> float:
    """Largest absolute difference over all outputs, divided by the largest absolute expected value."""
    if [a.shape for a in actual] != [e.shape for e in expected]:
        raise BenchError(f"outputs of shapes {[a.shape for a in actual]}, expected {[e.shape for e in expected]}")
    scale = max(float(np.abs(e).max()) for e in expected)
    return max(float(np.abs(a - e).max()) for a, e in zip(actual, expected, strict=True)) / scale


def time_runs(run: Callable[[], Any], least_secs: float, fewest: int) -> list[float]:
    """Seconds of each single run, until ``least_secs`` have passed and at least ``fewest`` runs were made."""
    secs: list[float] = []
    gc.disable()
    end = time.perf_counter() + least_secs
    while time.perf_counter() < end or len(secs) < fewest:
        start = time.perf_counter()
        run()
        secs.append(time.perf_counter() - start)
    gc.enable()
    return secs


@click.command()
@click.option("--side", type=click.Choice(list(SIDES)), required=True)
@click.option("--model", required=True, help="file.py:function, relative to the repository.")
@click.option("--threads", type=click.IntRange(min=1), required=True)
@click.option("--folder", type=click.Path(exists=True, path_type=Path), help="A result folder, for the side 'ours'.")
def main(side: str, model: str, threads: int, folder: Path | None) -> None:
    """Answers each line of standard input with one block of timed runs."""
    die_with_parent()
    torch.set_num_threads(threads)
    module, inputs = load_example(model)
    with torch.inference_mode():
        expected = _as_arrays(module(*inputs))
        started = time.perf_counter()
        run = SIDES[side](module, inputs, folder)
        error = relative_error(_as_arrays(run()), expected)
        ready_secs = time.perf_counter() - started
        if not error < _LARGEST_ERROR:
            raise BenchError(f"{side} differs from PyTorch by {error:.2g} of the largest output")
        time_runs(run, _WARM_SECS, _WARM_RUNS)
        print(json.dumps({"side": side, "ready_secs": ready_secs, "relative_error": error}), flush=True)
        for line in sys.stdin:
            print(json.dumps({"secs": time_runs(run, float(line), _FEWEST_RUNS)}), flush=True)


if __name__ == "__main__":
    main()
