"""Run time of kernels on this machine's GPU: ours, MetaSchedule's, and those of cuBLAS and cuDNN.

The kernels are the twenty products and convolutions of :mod:`bench.networks.gpu_kernels` in one precision. We and
MetaSchedule tune them for the same time, each from nothing in a fresh process. PyTorch runs each kernel in a CUDA graph
of twenty calls; TF32 is off. ``ours`` and ``peer`` (MetaSchedule) are geometric means, in milliseconds, of the best
times over the kernels that both have. ``ratio`` is MetaSchedule's mean divided by ours. If MetaSchedule has no kernel,
``ours`` is the mean over all our kernels, and there is neither ``peer`` nor ``ratio``. Without a usable GPU the result
has no figures, and its details give the reason.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.gpu.probe import probe_in_child
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchError, BenchResult
from bench.tables import markdown

_KERNELS = "bench/networks/gpu_kernels.py:kernels"
_TORCH_SECS = 600.0
_BESIDE_SECS = 600.0
"""Time limit of a tuner in addition to its tuning: start, import, compilation."""
_SIDES = ("ours", "metaschedule", "pytorch")


def run(precision: str, budget_secs: float) -> BenchResult:
    """Tune with each tuner for ``budget_secs`` and compare the kernels. Raise BenchError if our tuning fails."""
    gpu = probe_in_child()
    if gpu["reason"]:
        return skipped(gpu["reason"])
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        work = Path(folder)
        fleet = work / "fleet.toml"
        fleet.write_text(fleet_file(gpu["target"]))
        model = _KERNELS if precision == "float32" else f"{_KERNELS}_fp16"
        tuning = ["--fleet", str(fleet), "--budget-secs", str(budget_secs)]
        limit_secs = budget_secs + _BESIDE_SECS
        ours = _ran(["-m", "bench.gpu.tuned_kernels", model, str(work / "ours"), *tuning], limit_secs)
        if "failed" in ours:
            raise BenchError(ours["failed"])
        kept = ["--each", "--calls", "20", "--kept", str(work / "kept.jsonl")]
        half = "" if precision == "float32" else "-fp16"
        sides = [part for last in ("", "-channels-last") for part in ("--side", f"graph{half}{last}")]
        return compare(
            {
                "ours": ours,
                "metaschedule": _ran(
                    ["-m", "bench.peers.metaschedule_kernels", model, str(work / "theirs"), *tuning], limit_secs
                ),
                "pytorch": _ran(["-m", "bench.peers.torch_gpu", "--model", model, *kept, *sides], _TORCH_SECS),
            },
            gpu,
            precision,
        )


def _ran(args: Sequence[str], limit_secs: float) -> dict[str, Any]:
    """Return the figures of a side. If it fails, return no kernels, and the reason as ``failed``."""
    try:
        figures = run_json(args, env=bench_env(cores()), timeout_secs=limit_secs)
    except BenchError as error:
        return {"kernels": {}, "failed": str(error)[-500:]}
    return figures


def skipped(reason: str) -> BenchResult:
    """Return the result for a machine on which this benchmark cannot run."""
    return BenchResult("gpu", ours=None, peer=None, ratio=None, unit="ms", details={"reason": reason})


def compare(sides: Mapping[str, Mapping[str, Any]], gpu: Mapping[str, Any], precision: str) -> BenchResult:
    """Return the benchmark's result. ``sides``: the figures of each side; a side that failed has no kernels.

    Raise BenchError if we have no valid trial.
    """
    kernels = {
        name: {side: _best_secs(sides[side]["kernels"].get(name, {})) for side in _SIDES}
        for name in sides["ours"]["kernels"]
    }
    both = [secs for secs in kernels.values() if secs["ours"] is not None and secs["metaschedule"] is not None]
    ours = _mean_ms([secs["ours"] for secs in (both or kernels.values())])
    if ours is None:
        raise BenchError("tuning on the GPU ended without a valid trial")
    peer = _mean_ms([secs["metaschedule"] for secs in both])
    beside = [(secs["pytorch"], secs["ours"]) for secs in kernels.values()]
    ratios = [torch / own for torch, own in beside if torch is not None and own is not None]
    return BenchResult(
        bench="gpu",
        ours=ours,
        peer=peer,
        ratio=peer / ours if peer is not None else None,
        unit="ms",
        details={
            "gpu": dict(gpu),
            "precision": precision,
            "ratio_to_pytorch": statistics.geometric_mean(ratios) if ratios else None,
            "kernels": kernels,
            "sides": {name: {key: side[key] for key in side if key != "kernels"} for name, side in sides.items()},
        },
    )


def _best_secs(figures: Mapping[str, Any]) -> float | None:
    """Return the best time of a kernel over all variants of the side, such as memory formats; None without any."""
    times = [figures.get("best_secs"), *figures.get("sides", {}).values()]
    return min((secs for secs in times if secs is not None), default=None)


def _mean_ms(times: Sequence[float | None]) -> float | None:
    known = [secs for secs in times if secs is not None]
    return 1e3 * statistics.geometric_mean(known) if known else None


def fleet_file(target: Mapping[str, Any]) -> str:
    """Return the text of a fleet file with this machine's GPU as the only device.

    ``target``: plain attributes of a CUDA target.
    """
    attributes = ", ".join(f"{key} = {json.dumps(value)}" for key, value in target.items())
    return f'[[device]]\nname = "gpu"\ntarget = {{ {attributes} }}\n'


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    if result["ours"] is None:
        return f"Skipped: {details['reason']}."
    rows = []
    for name, secs in details["kernels"].items():
        rows.append((name, *("-" if secs[side] is None else f"{secs[side] * 1e3:.4f}" for side in _SIDES)))
    heading = f"ms on {details['gpu']['name']}, {details['precision']}"
    return markdown((heading, "ours", "MetaSchedule", "PyTorch"), rows)


BENCHMARK = Benchmark(
    name="gpu",
    help="Run time of kernels on this machine's GPU, against MetaSchedule, cuBLAS and cuDNN.",
    options=(
        click.Option(["--precision"], type=click.Choice(["float32", "float16"]), default="float32", show_default=True),
        options.seconds("--budget-secs", "budget_secs", 240.0, "Tuning time of each side."),
    ),
    short=("--budget-secs", "120"),
    run=run,
    table=table,
)
