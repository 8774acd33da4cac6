"""What measuring costs, and what is lost by measuring less: device seconds for each candidate, and the regret.

Three ways to measure the same candidates, one after the other on each candidate: ours (adaptive, racing, new incumbents
measured again, a shoot-out at the end), MetaSchedule's settings (the defaults of its EvaluatorConfig), and a fixed 500
runs. Each way then chooses the candidate that it takes for the fastest. What the chosen ones really take is measured
separately afterwards, with care; the regret is how much longer that is than the fastest of all that were judged.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.common import BenchError, BenchResult, bench_env, cores, run_json
from bench.measured import labels, pick, read

TASKS = ("matmul_add_relu 128x768", "matmul 12x128x128", "conv2d_add_relu 56x56x64", "conv2d_add_relu 14x14x256")
SIDES = ("ours", "metaschedule", "fixed")


def run(
    dataset: Path, tasks: Sequence[str], candidates: int, rounds: int, folder: Path, limit_secs: float, *, build: bool
) -> BenchResult | None:
    """Build and measure ``candidates`` of each task, judge the chosen ones in ``rounds``, and compare.

    ``folder`` keeps the libraries and each measured task: what is there is not done again. No further task is begun
    after ``limit_secs``; BenchError then says to run it again. ``build``: only build, and return None.
    """
    data = read(dataset)
    names = labels(data)
    chosen = [names[at] for at in pick(names, tasks)]
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    figures: dict[str, Any] = {}
    for name in chosen:
        part = ["-m", "bench.devices.measure_cost_process", str(dataset), str(folder), name, "--candidates", str(candidates)]
        stored = folder / f"{name}-{candidates}.json"
        if not (folder / f"{name}-{candidates}" / "built").is_file():
            run_json([*part, "--build"], env=bench_env(cores()), timeout_secs=1800)
        if build:
            continue
        if not stored.is_file():
            if figures and time.monotonic() - started > limit_secs:
                raise BenchError(f"{len(figures)} of {len(chosen)} tasks are measured: run it again for the others")
            measured = run_json([*part, "--rounds", str(rounds)], env=bench_env(cores()), timeout_secs=1800)
            temporary = stored.with_suffix(".tmp")
            temporary.write_text(json.dumps(measured))
            temporary.replace(stored)
        figures[name] = json.loads(stored.read_text())
    return None if build else compare(figures)


def compare(figures: Mapping[str, Mapping[str, Any]]) -> BenchResult:
    """The result from what :mod:`bench.devices.measure_cost_process` measured of each task."""
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
    """Device seconds and regret of each side on one task."""
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
    """Of the median of the rounds, as a share of it (1.2533 times the mean's, for a normal distribution)."""
    return 1.2533 * statistics.stdev(samples) / math.sqrt(len(samples)) / statistics.median(samples)
