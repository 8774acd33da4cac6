"""Run time of the kernels found on this machine's GPU: ours, MetaSchedule's and PyTorch's, on the same workloads.

MetaSchedule runs a number of trials, and we tune for as long as that took; both start from nothing in a fresh process.
``ours`` and ``peer`` (MetaSchedule) are geometric means over the workloads of the best kernel's milliseconds, ``ratio``
is MetaSchedule's over ours. Where there is no GPU the result says so: no figure, and the reason in the details.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import options
from bench.benchmark import Benchmark
from bench.devices.gpu_probe import probe_in_child
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchError, BenchResult
from bench.tables import markdown
from bench.tuning.tune_process import timeline

_TORCH_SECS = 300.0


def run(workloads: Sequence[str], trials: int) -> BenchResult:
    """Figures of each workload: MetaSchedule for ``trials`` trials, ours for as long as it took, PyTorch's kernels."""
    gpu = probe_in_child()
    if gpu["reason"]:
        return skipped(gpu["reason"])
    figures = {}
    for workload in workloads:
        peer = _metaschedule(workload, trials, gpu["target"])
        budget_secs = peer.get("elapsed_secs", 5.0 * trials)
        figures[workload] = {
            "ours": _ours(workload, budget_secs, gpu["target"]),
            "metaschedule": peer,
            "pytorch": run_json(
                ["-m", "bench.peers.torch_gpu", "--model", f"bench/networks/workloads.py:{workload}"],
                env=bench_env(cores()),
                timeout_secs=_TORCH_SECS,
            ),
        }
    return compare(figures, gpu)


def skipped(reason: str) -> BenchResult:
    """The result of a machine that this benchmark cannot run on."""
    return BenchResult("gpu", ours=None, peer=None, ratio=None, unit="ms", details={"reason": reason})


def compare(figures: Mapping[str, Mapping[str, Any]], gpu: Mapping[str, Any]) -> BenchResult:
    """The benchmark's result; ``figures``: of each workload those of the three sides, ``best_secs`` among them, None or
    absent where a side has none."""

    def mean_ms(side: str) -> float | None:
        bests = [each[side].get("best_secs") for each in figures.values()]
        return None if None in bests else 1e3 * statistics.geometric_mean(secs for secs in bests if secs is not None)

    ours, peer, torch = (mean_ms(side) for side in ("ours", "metaschedule", "pytorch"))
    if ours is None:
        raise BenchError("tuning on the GPU ended without a valid trial on some workload")
    return BenchResult(
        bench="gpu",
        ours=ours,
        peer=peer,
        ratio=peer / ours if peer is not None else None,
        unit="ms",
        details={
            "gpu": dict(gpu),
            "ratio_to_pytorch": torch / ours if torch is not None else None,
            "workloads": figures,
        },
    )


def _metaschedule(workload: str, trials: int, target: Mapping[str, Any]) -> dict[str, Any]:
    """MetaSchedule's figures. It needs a CUDA compiler of its own, and none is no reason to have no result."""
    mode = "nvcc" if shutil.which("nvcc") else "nvrtc"
    what = ["--workload", workload, "--trials", str(trials), "--gpu", json.dumps(target)]
    environment = bench_env(cores(), TVM_CUDA_COMPILE_MODE=mode)
    try:
        return run_json(["-m", "bench.peers.metaschedule", *what], env=environment, timeout_secs=600 + 30 * trials)
    except BenchError as error:
        return {"best_secs": None, "reason": str(error)[-500:]}


def _ours(workload: str, budget_secs: float, target: Mapping[str, Any]) -> dict[str, Any]:
    """Our figures. Those of the kernels count where the network around them cannot be compiled or checked."""
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        fleet, out = Path(folder) / "fleet.toml", Path(folder) / "out"
        fleet.write_text(fleet_file(target))
        what = [f"bench/networks/workloads.py:{workload}", str(out), "--budget-secs", str(budget_secs)]
        began = time.time()
        try:
            figures = run_json(
                ["-m", "bench.tuning.tune_process", *what, "--fleet", str(fleet)],
                env=bench_env(cores()),
                timeout_secs=budget_secs + 600,
            )
        except BenchError as error:
            records = out / "records.db"
            if not records.exists():
                raise
            figures = {**timeline(records, began), "reason": str(error)[-500:]}
    best = min(figures["best_secs"].values(), default=math.inf)
    return {**figures, "best_secs": best if math.isfinite(best) else None}


def fleet_file(target: Mapping[str, Any]) -> str:
    """This machine's GPU as the only device; ``target``: plain attributes of a CUDA target."""
    attributes = ", ".join(f"{key} = {json.dumps(value)}" for key, value in target.items())
    return f'[[device]]\nname = "gpu"\ntarget = {{ {attributes} }}\n'


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    if result["ours"] is None:
        return f"Skipped: {details['reason']}."
    rows = []
    for name, sides in details["workloads"].items():
        secs = [sides[side].get("best_secs") for side in ("ours", "metaschedule", "pytorch")]
        rows.append((f"`{name}`", *("-" if each is None else f"{each * 1e3:.4f}" for each in secs)))
    return markdown((f"ms on {details['gpu']['name']}", "ours", "MetaSchedule", "PyTorch"), rows)


BENCHMARK = Benchmark(
    name="gpu",
    help="Run time of the kernels that are found on this machine's GPU, against MetaSchedule and PyTorch.",
    options=(options.workloads(), options.count("--trials", 256, "MetaSchedule's trials.")),
    short=("--trials", "64"),
    run=run,
    table=table,
)
