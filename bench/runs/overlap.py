"""Trials a minute of a fleet of simulated devices: search, builds and measurements at the same time, as in a run,
against the same parts in rounds."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchResult
from bench.tables import markdown

ASKED_RATIO = 1.5
_OVERHEAD_SECS = 120.0  # to start and end the processes of one run
WARM_UP_SECS = 20.0


def run(devices: int, candidate_secs: float, build_secs: float, size: int, secs: float, repeats: int) -> BenchResult:
    args = ["-m", "bench.runs.overlap_process", "--devices", str(devices), "--candidate", str(candidate_secs)]
    args += ["--build", str(build_secs), "--round", str(size), "--seconds", str(secs), "--repeats", str(repeats)]
    timeout_secs = 2 * repeats * (secs + WARM_UP_SECS + _OVERHEAD_SECS)
    details = run_json(args, env=bench_env(cores()), timeout_secs=timeout_secs)
    streaming, rounds = (60.0 * median(details[kind]) for kind in ("streaming", "rounds"))
    details |= {"asked_ratio": ASKED_RATIO, "candidate_secs": candidate_secs, "build_secs": build_secs, "size": size}
    return BenchResult("overlap", streaming, rounds, streaming / rounds, "trials a minute", details)


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    rows = [
        (name, f"{60 * median(rates):,.0f}", f"{min(rates) * 60:,.0f} to {max(rates) * 60:,.0f}")
        for name, rates in (
            ("at the same time", details["streaming"]),
            (f"in rounds of {details['size']}", details["rounds"]),
        )
    ]
    most = f"{60 * details['demand']:,.0f}"
    rows.append(("devices that never wait", most, ""))
    return markdown((f"{details['devices']} devices, {details['builders']} builders", "trials a minute", "of"), rows)


BENCHMARK = Benchmark(
    name="overlap",
    help="Trials a minute of the streaming runtime against the same parts in rounds, with simulated devices.",
    options=(
        options.count("--devices", 8, "Simulated devices, of three classes in turn."),
        options.seconds("--candidate", "candidate_secs", 0.5, "A candidate takes on a device, in the median."),
        options.seconds("--build", "build_secs", 0.6, "A build takes."),
        click.Option(
            ["--round", "size"],
            type=click.IntRange(min=1),
            default=64,
            show_default=True,
            help="Candidates of a round; MetaSchedule's default.",
        ),
        options.seconds("--seconds", "secs", 180.0, "Each run is watched for so long."),
        options.count("--repeats", 3, "Runs of each kind, in turn."),
    ),
    short=("--seconds", "20", "--repeats", "1", "--round", "16"),
    run=run,
    table=table,
)
