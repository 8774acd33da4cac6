"""Valid measured trials a minute, ours and MetaSchedule's, on the same two workloads.

Both tuners start from nothing in a new process, with the same number of threads and the same time: MetaSchedule runs a
number of trials, and we tune for as long as that took. Both clocks include the start of workers. Ours also includes the
import of the network, of TVM and of Ray. ``ratio`` is the geometric mean of the workloads' ratios.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchError, BenchResult, spread
from bench.tables import markdown, median_and_range


def metaschedule(workload: str, trials: int, limit_secs: float) -> dict[str, Any]:
    """Return MetaSchedule's figures (see :mod:`bench.peers.metaschedule`), from a process of its own."""
    limits = ("--trials", str(trials), "--limit-secs", str(limit_secs))
    return run_json(
        ["-m", "bench.peers.metaschedule", "--workload", workload, *limits],
        env=bench_env(cores()),
        timeout_secs=600 + 30 * trials,
    )


def ours(workload: str, budget_secs: float, seed: int) -> dict[str, Any]:
    """Return our figures (see :mod:`bench.tuning.tune_process`), from a process and a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        what = (f"bench/networks/workloads.py:{workload}", str(Path(folder) / "out"))
        return run_json(
            ["-m", "bench.tuning.tune_process", *what, "--budget-secs", str(budget_secs), "--seed", str(seed)],
            env=bench_env(cores()),
            timeout_secs=budget_secs + 600,
        )


def run(workloads: Sequence[str], trials: int, rounds: int, limit_secs: float = math.inf) -> BenchResult:
    """Measure both tuners ``rounds`` times on each workload: MetaSchedule for ``trials`` trials, then ours for the same
    time. ``limit_secs``: time after which MetaSchedule ends with the batch in progress."""
    per_workload: dict[str, Any] = {}
    for workload in workloads:
        peers, mine = [], []
        for seed in range(rounds):
            peers.append(metaschedule(workload, trials, limit_secs))
            mine.append(ours(workload, peers[-1]["elapsed_secs"], seed))
        per_workload[workload] = workload_figures(mine, peers)
    our_rates = [figures["ours"]["median"] for figures in per_workload.values()]
    peer_rates = [figures["peer"]["median"] for figures in per_workload.values()]
    ratios = [figures["ratio"] for figures in per_workload.values()]
    return BenchResult(
        bench="trial-rate",
        ours=statistics.geometric_mean(our_rates),
        peer=statistics.geometric_mean(peer_rates),
        ratio=statistics.geometric_mean(ratios),
        unit="valid trials/min",
        details={"workloads": per_workload, "threads": cores(), "rounds": rounds},
    )


def workload_figures(mine: Sequence[dict[str, Any]], peers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the rates of one workload over all rounds, and their ratio, from the figures of the runs of both tuners.
    Raises :class:`BenchError` if a run has no valid trial, or one of our runs has not exactly one task."""
    for side, runs in (("ours", mine), ("MetaSchedule", peers)):
        if any(not run["valid"] for run in runs):
            raise BenchError(f"{side} measured no valid trial: {runs}")
    if any(run["tasks"] != 1 for run in mine):
        raise BenchError(f"our model gave {[run['tasks'] for run in mine]} tasks; MetaSchedule tunes one")
    our_rate = spread([run["valid_per_minute"] for run in mine])
    peer_rate = spread([run["valid_per_minute"] for run in peers])
    return {
        "ours": our_rate,
        "peer": peer_rate,
        "ratio": our_rate["median"] / peer_rate["median"],
        "our_runs": [{k: v for k, v in run.items() if k not in ("folder", "task_results")} for run in mine],
        "peer_runs": [{k: v for k, v in run.items() if k != "batches"} for run in peers],
    }


def table(result: Mapping[str, Any]) -> str:
    rows = []
    for name, figures in result["details"]["workloads"].items():
        after = [run["valid_per_minute_after_first"] for run in figures["our_runs"]]
        rows.append(
            (
                f"`{name}`",
                median_and_range(figures["ours"], digits=0),
                "-" if None in after else f"{sum(after) / len(after):.0f}",
                median_and_range(figures["peer"], digits=0),
                f"{figures['ratio']:.1f}",
            )
        )
    header = ("valid trials a minute", "ours", "ours after the first record", "MetaSchedule", "ratio")
    return markdown(header, rows)


BENCHMARK = Benchmark(
    name="trial-rate",
    help="Valid measured trials a minute, ours and MetaSchedule's.",
    options=(
        options.workloads(),
        options.count("--trials", 128, "MetaSchedule's trials."),
        options.count("--rounds", 3),
        click.Option(
            ["--limit-secs"], type=float, default=math.inf, help="End MetaSchedule after the batch in progress."
        ),
    ),
    short=("--trials", "64", "--rounds", "1"),
    run=run,
    table=table,
)
