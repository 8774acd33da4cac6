"""Compares the runtime, which searches asynchronously with candidates in flight, with the same method in rounds: trials
until a network of all recorded tasks is within 5% of its best."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import read
from bench.machine import bench_env, cores
from bench.models.laboratory import method_named
from bench.processes import run_json
from bench.replay.replay_runs import RecordedTask, quartiles, run_network
from bench.result import BenchResult
from bench.tables import markdown

_RUN_SECS = 1800.0


def run(dataset: Path, method: str, devices: int, seeds: int) -> BenchResult:
    """Return a result with the median trials of the runtime (``ours``) and of the same method in rounds (``peer``).
    ``ratio`` is ``peer / ours``."""
    args = ["-m", "bench.replay.runtime_process", "--dataset", str(dataset), "--method", method]
    args += ["--devices", str(devices)]
    runtime = [
        float(run_json([*args, "--seed", str(seed)], env=bench_env(cores()), timeout_secs=_RUN_SECS)["trials"])
        for seed in range(seeds)
    ]
    tasks = [RecordedTask(data) for data in read(dataset)]
    rounds = [float(run_network(tasks, method_named(method), seed)) for seed in range(seeds)]
    details: dict[str, Any] = {
        "method": method,
        "devices": devices,
        "seeds": seeds,
        "tasks": len(tasks),
        "runtime": quartiles(runtime),
        "rounds": quartiles(rounds),
    }
    ours, peer = details["runtime"]["median"], details["rounds"]["median"]
    return BenchResult("runtime-replay", ours, peer, peer / ours, "trials", details)


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    rows = [
        (name, "{median:.0f} ({q1:.0f} to {q3:.0f})".format(**details[key]))
        for name, key in (("the runtime, in flight", "runtime"), ("the same in rounds", "rounds"))
    ]
    return markdown((f"`{details['method']}`, {details['tasks']} tasks, {details['seeds']} seeds", "trials"), rows)


BENCHMARK = Benchmark(
    name="runtime-replay",
    help="Trials of the real, asynchronous runtime on recorded devices, beside the same method in rounds.",
    options=(
        options.dataset(),
        click.Option(["--method"], default="fleet", show_default=True, help="A method of fleet-tune."),
        options.count("--devices", 1, "Recorded devices."),
        options.count("--seeds", 5),
    ),
    short=("--seeds", "1"),
    run=run,
    table=table,
)
