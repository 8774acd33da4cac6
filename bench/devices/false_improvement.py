"""Share of duels in which a candidate is judged to be faster than itself: A against A, on a real device.

A candidate becomes the incumbent when it wins a duel against the old one, in which both run in turn
(:mod:`policies.measuring.duel`). Here both sides of every duel are the same kernel, so each win is a mistake. The
device is this machine in its present state: at most one mistake in a hundred duels is allowed even on a busy machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, pick, read
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchResult
from bench.tables import markdown

TASKS = ("matmul_add_relu 128x768", "matmul 12x128x128", "conv2d_add_relu 56x56x64", "conv2d_add_relu 14x14x256")
ASKED = 0.01
"""Largest share of duels that may be won when both kernels are equal."""


def run(dataset: Path, tasks: Sequence[str], candidates: int, duels: int) -> BenchResult:
    """Let each of ``candidates`` candidates of each task duel with itself ``duels`` times."""
    names = labels(read(dataset))
    figures: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        for name in [names[at] for at in pick(names, tasks)]:
            what = [str(dataset), folder, name, "--candidates", str(candidates), "--duels", str(duels)]
            part = ["-m", "bench.devices.false_improvement_process", *what]
            figures[name] = run_json(part, env=bench_env(cores()), timeout_secs=3600)["duels"]
    return summed(figures)


def summed(figures: Mapping[str, Sequence[Mapping[str, Any]]]) -> BenchResult:
    """Return the result. ``figures``: the duels of each task, each duel with its ``faster``, ``ratio``, ``error``,
    ``runs`` and ``device_secs``."""
    tasks = {name: task_figures(duels) for name, duels in figures.items()}
    count = sum(task["duels"] for task in tasks.values())
    rate = sum(task["false"] for task in tasks.values()) / count
    return BenchResult(
        bench="false-improvement",
        ours=rate,
        peer=ASKED,
        # The share of correct duels over the required share. The rates themselves have no ratio: ours may be 0.
        ratio=(1 - rate) / (1 - ASKED),
        unit="share of A/A duels",
        details={"duels": count, "tasks": tasks, "threads": cores()},
    )


def task_figures(duels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures of one task over all of its duels."""
    count = len(duels)
    return {
        "duels": count,
        "false": sum(bool(each["faster"]) for each in duels),
        "worst_ratio": min(each["ratio"] for each in duels),
        "mean_runs": sum(each["runs"] for each in duels) / count,
        "mean_device_secs": sum(each["device_secs"] for each in duels) / count,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the result's JSON object as a table."""
    header = ("task", "A/A duels", "won by one side", "lowest ratio", "runs each", "device s each")
    rows = [
        (
            f"`{name}`",
            str(task["duels"]),
            str(task["false"]),
            f"{task['worst_ratio']:.3f}",
            f"{task['mean_runs']:.1f}",
            f"{task['mean_device_secs']:.2f}",
        )
        for name, task in result["details"]["tasks"].items()
    ]
    return f"{markdown(header, rows)}\n\nFalse improvements: {result['ours']:.2%}; asked: at most {result['peer']:.0%}."


BENCHMARK = Benchmark(
    name="false-improvement",
    help="How often a candidate wins against itself, on this machine as it is.",
    options=(
        options.dataset(),
        options.tasks("two matmuls and two convolutions", TASKS),
        options.count("--candidates", 8, "Of each task.", least=8),
        options.count("--duels", 20, "Of each candidate."),
    ),
    short=("--duels", "4"),
    run=run,
    table=table,
)
