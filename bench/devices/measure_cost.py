"""Cost of measuring, and loss by measuring less: device seconds for each candidate, and the regret.

Each candidate is measured in three ways, one after the other: ours (adaptive, racing, new incumbents measured again, a
shoot-out at the end), MetaSchedule's settings (the defaults of its EvaluatorConfig), and a fixed 500 runs. Each way
then chooses the candidate that looks fastest. Afterwards a judge measures the chosen candidates, and those close to
them, separately and with care. The regret of a way is the share by which the judged latency of its choice exceeds the
lowest judged latency.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, pick, read
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchError, BenchResult
from bench.tables import markdown
from fleet_tune.base.records.files.atomic_file import write_atomically

TASKS = ("matmul_add_relu 128x768", "matmul 12x128x128", "conv2d_add_relu 56x56x64", "conv2d_add_relu 14x14x256")
SIDES = ("ours", "metaschedule", "fixed")


def run(
    dataset: Path,
    tasks: Sequence[str],
    candidates: int,
    rounds: int,
    out: Path | None,
    limit_secs: float,
    *,
    build: bool,
) -> BenchResult | None:
    """Call :func:`run_in` with the folder ``out``, or with a temporary folder if it is None."""
    with ExitStack() as stack:
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-tune-bench-")))
        return run_in(out.absolute(), dataset, tasks, candidates, rounds, limit_secs, build=build)


def run_in(
    folder: Path, dataset: Path, tasks: Sequence[str], candidates: int, rounds: int, limit_secs: float, *, build: bool
) -> BenchResult | None:
    """Build and measure ``candidates`` candidates of each task, judge the chosen ones in ``rounds`` rounds, compare.

    ``folder`` keeps the libraries and the figures of each measured task; these are not made again. No further task is
    begun after ``limit_secs`` seconds: :class:`BenchError` then says to run the benchmark again. ``build``: only build,
    and return None.
    """
    data = read(dataset)
    names = labels(data)
    chosen = [names[at] for at in pick(names, tasks)]
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    figures: dict[str, Any] = {}
    for name in chosen:
        what = [str(dataset), str(folder), name, "--candidates", str(candidates)]
        part = ["-m", "bench.devices.measure_cost_process", *what]
        stored = folder / f"{name}-{candidates}.json"
        if not (folder / f"{name}-{candidates}" / "built").is_file():
            run_json([*part, "--build"], env=bench_env(cores()), timeout_secs=1800)
        if build:
            continue
        if not stored.is_file():
            if figures and time.monotonic() - started > limit_secs:
                raise BenchError(f"{len(figures)} of {len(chosen)} tasks are measured: run it again for the others")
            measured = run_json([*part, "--rounds", str(rounds)], env=bench_env(cores()), timeout_secs=1800)
            write_atomically(stored, json.dumps(measured).encode())
        figures[name] = json.loads(stored.read_text())
    return None if build else compare(figures)


def compare(figures: Mapping[str, Mapping[str, Any]]) -> BenchResult:
    """Return the result. ``figures``: by task, the output of :mod:`bench.devices.measure_cost_process`."""
    tasks = {name: task_figures(measured) for name, measured in figures.items()}
    count = sum(task["candidates"] for task in tasks.values())
    secs = {side: sum(task["device_secs"][side] for task in tasks.values()) / count for side in SIDES}
    regret = {side: statistics.fmean(task["regret"][side] for task in tasks.values()) for side in SIDES}
    return BenchResult(
        bench="measure-cost",
        ours=secs["ours"],
        peer=secs["metaschedule"],
        ratio=secs["metaschedule"] / secs["ours"],
        unit="device s/candidate",
        details={
            "candidates": count,
            "device_secs_per_candidate": secs,
            "mean_regret": regret,
            "worst_regret": {side: max(task["regret"][side] for task in tasks.values()) for side in SIDES},
            "tasks": tasks,
            "threads": cores(),
        },
    )


def task_figures(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the device seconds and the regret of each side on one task."""
    rows, judged = measured["rows"], measured["judged"]
    true_secs = {int(row): statistics.median(samples) for row, samples in judged.items()}
    best = min(true_secs.values())
    return {
        "candidates": len(rows),
        "device_secs": {
            "ours": sum(row["ours"]["device_secs"] for row in rows) + measured["shoot_out_secs"],
            "metaschedule": sum(row["metaschedule"]["device_secs"] for row in rows),
            "fixed": sum(row["fixed"]["device_secs"] for row in rows),
        },
        "regret": {side: true_secs[measured["chosen"][side]] / best - 1 for side in SIDES},
        "best_secs": best,
        "judged": len(judged),
        "judge_error": max(_standard_error(samples) for samples in judged.values()),
        "shoot_out_secs": measured["shoot_out_secs"],
        "confirmed": sum(row["ours"]["confirmed"] for row in rows),
        "stopped": Counter(row["ours"]["stopped"] for row in rows),
        "shortened": sum(row["fixed"]["runs"] < 500 for row in rows),
    }


def _standard_error(samples: Sequence[float]) -> float:
    """Standard error of the median of the rounds, as a share of the median. For a normal distribution it is 1.2533
    times the standard error of the mean."""
    return 1.2533 * statistics.stdev(samples) / math.sqrt(len(samples)) / statistics.median(samples)


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    names = {"ours": "ours", "metaschedule": "MetaSchedule's settings", "fixed": "500 runs"}
    rows = []
    for name, task in details["tasks"].items():
        secs = [f"{task['device_secs'][side] / task['candidates'] * 1e3:.1f}" for side in names]
        regret = [f"{task['regret'][side]:.2%}" for side in names]
        stopped = ", ".join(f"{count} {why}" for why, count in sorted(task["stopped"].items()))
        rows.append((f"`{name}` ({task['candidates']})", *secs, *regret, f"{stopped}, {task['confirmed']} confirmed"))
    overall = [f"{details['device_secs_per_candidate'][side] * 1e3:.1f}" for side in names]
    mean = [f"{details['mean_regret'][side]:.2%}" for side in names]
    rows.append((f"all ({details['candidates']})", *overall, *mean, f"ratio {result['ratio']:.1f}"))
    header = (
        "device ms a candidate",
        *names.values(),
        *(f"regret, {name}" for name in names.values()),
        "how ours ended",
    )
    table = markdown(header, rows)
    shortened = sum(task["shortened"] for task in details["tasks"].values())
    error = max(task["judge_error"] for task in details["tasks"].values())
    return (
        f"{table}\n\nThe judge's costs have a standard error of at most {error:.2%}. Of {shortened} candidates as many "
        "of the 500 runs were taken as fit into a second, and the time of the others is computed."
    )


BENCHMARK = Benchmark(
    name="measure-cost",
    help="Device seconds for each candidate and the regret, against 500 runs and MetaSchedule's evaluator settings.",
    options=(
        options.dataset(),
        options.tasks("two matmuls and two convolutions", TASKS),
        options.count("--candidates", 60, "Of each task.", least=8),
        options.count("--rounds", 100, "In which the best are judged.", least=3),
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path),
            help="Keep libraries and measured tasks here, and go on with them.",
        ),
        click.Option(["--limit-secs"], type=float, default=math.inf, help="Begin no further task after this time."),
        click.Option(["--build"], is_flag=True, help="Only compile the candidates into --out."),
    ),
    short=("--candidates", "16", "--rounds", "20"),
    run=run,
    table=table,
)
