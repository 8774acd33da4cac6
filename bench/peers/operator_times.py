"""The time of each operator of a network in a framework, by the framework's own profiler.

``python -m bench.peers.operator_times --side ort --model FILE.py:FUNCTION --threads 2`` prints one line of JSON. Each
operator that the framework runs has its name, its kind, the shape of its first output and its median seconds. ``secs``
is the median seconds of whole runs without the profiler. Sides: ``ort`` (ONNX Runtime), ``openvino`` (told to keep
float32).
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch

from bench.peers.example import Example, feed, load
from bench.processes import die_with_parent

_WARM_RUNS = 20
_Times = dict[tuple[str, str, tuple[int, ...]], float]
"""Seconds of each operator in one run, by its name, its kind and the shape of its first output."""


def onnx_runtime(example: Example, runs: int) -> tuple[list[_Times], float]:
    """Return the operators' times in each of ``runs`` profiled runs, and the median seconds of a run without the
    profiler."""
    import onnxruntime as ort

    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        file = str(example.source.onnx_file(Path(folder)))

        def session(profiled: bool) -> Any:
            options = ort.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            options.enable_profiling = profiled
            options.profile_file_prefix = str(Path(folder) / "profile")
            return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])

        plain, profiled = session(False), session(True)
        arrays = feed(plain.get_inputs(), example.inputs)
        secs = _timed(lambda: plain.run(None, arrays), runs)
        for _ in range(_WARM_RUNS + runs):
            profiled.run(None, arrays)
        events = json.loads(Path(profiled.end_profiling()).read_text())
    found: list[_Times] = [{} for _ in range(_WARM_RUNS + runs)]
    seen: defaultdict[str, int] = defaultdict(int)
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        arguments = event["args"]
        shapes = arguments.get("output_type_shape") or [{"": []}]
        shape = tuple(next(iter(shapes[0].values())))
        run, seen[event["name"]] = seen[event["name"]], seen[event["name"]] + 1
        found[run][event["name"], arguments["op_name"], shape] = event["dur"] / 1e6
    return found[_WARM_RUNS:], secs


def openvino(example: Example, runs: int) -> tuple[list[_Times], float]:
    """Return what :func:`onnx_runtime` returns."""
    import openvino as ov

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "f32",
    }
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        file = example.source.onnx_file(Path(folder))
        plain = ov.Core().compile_model(file, "CPU", settings)
        profiled = ov.Core().compile_model(file, "CPU", {**settings, "PERF_COUNT": "YES"})
    shapes = {
        each.get_friendly_name(): tuple(each.get_output_shape(0)) if each.get_output_size() else ()
        for each in profiled.get_runtime_model().get_ops()
    }
    inputs = [tensor.numpy() for tensor in example.inputs]
    request = plain.create_infer_request()
    secs = _timed(lambda: request.infer(inputs), runs)
    request = profiled.create_infer_request()
    found: list[_Times] = []
    for _ in range(_WARM_RUNS + runs):
        request.infer(inputs)
        found.append(
            {
                (each.node_name, each.node_type, shapes.get(each.node_name, ())): each.real_time.total_seconds()
                for each in request.get_profiling_info()
                if each.status == ov.ProfilingInfo.Status.EXECUTED
            }
        )
    return found[_WARM_RUNS:], secs


SIDES: dict[str, Callable[[Example, int], tuple[list[_Times], float]]] = {"ort": onnx_runtime, "openvino": openvino}


def _timed(run: Callable[[], Any], runs: int) -> float:
    def once() -> float:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began

    return statistics.median([once() for _ in range(_WARM_RUNS + runs)][_WARM_RUNS:])


def _medians(found: list[_Times]) -> Iterator[dict[str, Any]]:
    for name, kind, shape in found[0]:
        secs = [each[name, kind, shape] for each in found if (name, kind, shape) in each]
        yield {"name": name, "kind": kind, "shape": list(shape), "secs": statistics.median(secs)}


@click.command()
@click.option("--side", type=click.Choice(list(SIDES)), required=True)
@click.option("--model", required=True, help="file.py:function or an ONNX file, relative to the repository.")
@click.option("--threads", type=click.IntRange(min=1), required=True)
@click.option("--runs", type=click.IntRange(min=1), default=50, show_default=True)
def main(side: str, model: str, threads: int, runs: int) -> None:
    """Print the times as one line of JSON."""
    die_with_parent()
    torch.set_num_threads(threads)
    with torch.inference_mode():
        found, secs = SIDES[side](load(model), runs)
    click.echo(json.dumps({"secs": secs, "operators": list(_medians(found))}))


if __name__ == "__main__":
    main()
