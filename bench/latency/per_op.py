"""The time of each operator of a tuned network compared with the same operator in ONNX Runtime and OpenVINO.

Our times are those of the kernels in the network, from its manifest. The frameworks' times are from their profilers,
with the same number of threads. Each framework names and fuses operators in its own way, so two operators count as the
same if they have the same kind and their outputs have the same extents in any layout. A row has the sum over all calls
of an operator. The rows with our largest losses come first.

The search times each kernel alone. A line below the table says how well these times predict the times in the network.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchError, BenchResult
from bench.tables import markdown
from policies.cost_models.rank_quality import rank_correlation

PEERS = {"ort": "ONNX Runtime", "openvino": "OpenVINO, float32"}
_KINDS = {
    "convolution": ("conv", "groupconv"),
    "product": ("matmul", "gemm", "fullyconnected", "multi_head_attention", "attention", "bmm"),
    "pooling": ("pool",),
    "softmax": ("softmax",),
    "norm": ("norm", "mvn"),
    "mean or sum": ("mean", "reduce"),
    "layout": ("transpose", "reorder", "reshape", "squeeze", "concat", "split", "slice", "pad", "gather", "take"),
}
"""Words in the names of operators, by kind. The first match counts. Operators without a match are element-wise."""
_ELEMENT_WISE = "element-wise"

Key = tuple[str, tuple[int, ...]]


def kind_of(name: str) -> str:
    """Return the kind of an operator from its name in any framework; of a fused operator, the kind of its main part."""
    plain = name.lower()
    return next((kind for kind, words in _KINDS.items() if any(word in plain for word in words)), _ELEMENT_WISE)


def key_of(name: str, shape: Iterable[int]) -> Key:
    """Return a key that is equal for the same operator in two frameworks: its kind, and the output's extents above 1,
    sorted."""
    return kind_of(name), tuple(sorted(extent for extent in shape if extent > 1))


def ours_of(manifest: Mapping[str, Any]) -> dict[Key, float]:
    """Return our seconds of each operator in one run of a network, from its manifest.

    Raise :class:`BenchError` if the kernels of the network were not timed.
    """
    timed = manifest.get("in_network")
    if not timed:
        raise BenchError("the kernels of this network were not timed: tune it on this machine")
    found: defaultdict[Key, float] = defaultdict(float)
    for kernel in timed["kernels"]:
        name, _, shape = kernel["task"].partition("#")[0].rpartition(" ")
        found[key_of(name, (int(extent) for extent in re.findall(r"\d+", shape)))] += kernel["calls"] * kernel["secs"]
    return dict(found)


def alone_against_in_network(manifest: Mapping[str, Any]) -> dict[str, float]:
    """Return how well the times of the kernels alone predict those in the network: ``rank_correlation`` (Spearman) over
    the kernels, and ``sum``, the time of all calls alone divided by their time in the network."""
    kernels = [each for each in manifest["in_network"]["kernels"] if each["alone_secs"] is not None]
    alone, in_network, calls = (np.array([each[name] for each in kernels]) for name in ("alone_secs", "secs", "calls"))
    return {
        "rank_correlation": rank_correlation(alone, in_network),
        "sum": float((calls * alone).sum() / (calls * in_network).sum()),
    }


def theirs_of(operators: Sequence[Mapping[str, Any]]) -> dict[Key, float]:
    """Return a framework's seconds of each operator in one run.

    ``operators``: its profile (:mod:`bench.peers.operator_times`).
    """
    found: defaultdict[Key, float] = defaultdict(float)
    for each in operators:
        found[key_of(each["kind"], each["shape"])] += each["secs"]
    return dict(found)


def rows_of(ours: Mapping[Key, float], peers: Mapping[str, Mapping[Key, float]]) -> list[dict[str, Any]]:
    """Return a row for each operator, the largest loss first. A row has the seconds of each side (None: the side has no
    such operator), and as ``loss`` our seconds minus those of the fastest framework. A missing time counts as 0 in the
    loss."""
    rows = []
    for key in {*ours, *(key for each in peers.values() for key in each)}:
        theirs = {side: times.get(key) for side, times in peers.items()}
        known = [secs for secs in theirs.values() if secs is not None]
        own = ours.get(key)
        loss = (own or 0.0) - (min(known) if known else 0.0)
        rows.append({"kind": key[0], "shape": list(key[1]), "ours": own, **theirs, "loss": loss})
    return sorted(rows, key=lambda row: -row["loss"])


def run(model: str, folder: Path | None, budget_secs: float, runs: int) -> BenchResult:
    """Profile ``model`` as it was tuned into ``folder``. Without a folder, tune it first for ``budget_secs``.

    ``ours`` and ``peer`` (the fastest framework) are milliseconds of a whole run. ``runs``: runs of each framework.
    Raise :class:`BenchError` if the folder has no compiled network or its kernels were not timed.
    """
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as new:
        if folder is None:
            folder = Path(new) / "net"
            arguments = ["-m", "bench.tuning.tune_process", model, str(folder), "--budget-secs", str(budget_secs)]
            run_json(arguments, env=bench_env(cores()), timeout_secs=budget_secs + 900)
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
        except OSError as error:
            raise BenchError(f"{folder} holds no compiled network: give a folder of 'fleet-tune tune'") from error
    profiles = {}
    for side in PEERS:
        if side == "openvino" and not find_spec("openvino"):
            continue
        arguments = ["-m", "bench.peers.operator_times", "--side", side, "--model", model, "--runs", str(runs)]
        arguments += ["--threads", str(cores())]
        profiles[side] = run_json(arguments, env=bench_env(cores()), timeout_secs=900)
    rows = rows_of(ours_of(manifest), {side: theirs_of(each["operators"]) for side, each in profiles.items()})
    own, best = manifest["in_network"]["secs"], min(each["secs"] for each in profiles.values())
    details = {
        "model": model,
        "threads": cores(),
        "alone": alone_against_in_network(manifest),
        "whole_secs": {"ours": own, **{side: each["secs"] for side, each in profiles.items()}},
        "rows": rows,
    }
    return BenchResult("per-op", own * 1e3, best * 1e3, best / own, "ms", details)


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    sides = [side for side in PEERS if side in details["whole_secs"]]

    def micro(secs: float | None) -> str:
        return "-" if secs is None else f"{1e6 * secs:.0f}"

    rows = [
        (f"{row['kind']} {'x'.join(map(str, row['shape']))}", *(micro(row[each]) for each in ("ours", *sides, "loss")))
        for row in details["rows"]
    ]
    rows.append(("whole runs", *(micro(details["whole_secs"][side]) for side in ("ours", *sides)), ""))
    header = (f"`{details['model']}`, us", "fleet-tune", *(PEERS[side] for side in sides), "loss")
    alone = details["alone"]
    told = f"rank correlation {alone['rank_correlation']:.2f}, sum {alone['sum']:.2f} of that in the network"
    return f"{markdown(header, rows)}\n\nKernels alone: {told}."


BENCHMARK = Benchmark(
    name="per-op",
    help="Time of each operator in the tuned network, in ONNX Runtime and in OpenVINO.",
    options=(
        click.Option(["--model"], default=options.RESNET18, show_default=True, help="file.py:function, or ONNX file."),
        click.Option(
            ["--folder"], type=click.Path(path_type=Path), help="Where the network was tuned; else it is now."
        ),
        options.seconds("--budget", "budget_secs", 180.0, "Seconds of tuning."),
        options.count("--runs", 50, "Runs of each framework."),
    ),
    short=("--model", options.RESNET18, "--budget", "60"),
    run=run,
    table=table,
)
