"""Seconds from the start of ``fleet-tune tune`` to its first durable valid record, and from SIGTERM to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import cores
from bench.processes import end_group, start_logged
from bench.result import BenchError, BenchResult, spread
from bench.tables import markdown, median_and_range

_POLL_SECS = 0.02
_LIMIT_SECS = 120.0
# Exit code of the command line after SIGTERM, if it has reported its results.
_STOPPED = 128 + signal.SIGTERM


def once(model: str, out: Path) -> tuple[float, float]:
    """Run the command line on ``model`` until its first valid record, and stop it with SIGTERM. Return the seconds to
    the record, and from SIGTERM to the end of the process.

    Raises :class:`BenchError` if the process ends or ``_LIMIT_SECS`` pass before there is a valid record, if the
    process still runs 60 s after SIGTERM, or if its exit code is not that of a stopped run.
    """
    start = time.perf_counter()
    with (out.parent / "log.txt").open("w+") as log:
        args = ["-m", "fleet_tune", "tune", model, "--out", str(out), "--time-budget", "10m"]
        child = start_logged(args, log)
        try:
            while not _has_valid_record(out / "records.db"):
                if child.poll() is not None or time.perf_counter() - start > _LIMIT_SECS:
                    raise BenchError(f"no valid record after {time.perf_counter() - start:.0f} s: {_end_of(log)}")
                time.sleep(_POLL_SECS)
            first_secs = time.perf_counter() - start
            os.kill(child.pid, signal.SIGTERM)
            stopping = time.perf_counter()
            try:
                code = child.wait(timeout=60)
            except subprocess.TimeoutExpired as error:
                raise BenchError("still running 60 s after SIGTERM") from error
            stop_secs = time.perf_counter() - stopping
            if code != _STOPPED:
                raise BenchError(f"exit code {code} after SIGTERM, not {_STOPPED}: {_end_of(log)}")
            return first_secs, stop_secs
        finally:
            end_group(child)


def _end_of(log: IO[str]) -> str:
    log.seek(0)
    return log.read()[-2000:]


def _has_valid_record(path: Path) -> bool:
    from fleet_tune.base.domain import Outcome
    from fleet_tune.base.errors import RecordStoreError
    from fleet_tune.base.records.stores.reader import RecordReader

    try:
        with RecordReader(path) as reader:
            return Outcome.OK in reader.counts()
    except RecordStoreError:
        return False  # not created yet


def run(models: Sequence[str], rounds: int) -> BenchResult:
    """Run each of ``models`` for ``rounds`` times. ``ours``: median seconds to the first valid record of the slowest
    model. There is no peer."""
    figures = {}
    for model in models:
        first, stop = [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
                first_secs, stop_secs = once(model, Path(folder) / "out")
            first.append(first_secs)
            stop.append(stop_secs)
        figures[model] = {"first_record_secs": spread(first), "stop_secs": spread(stop)}
    return BenchResult(
        bench="first-record",
        ours=max(item["first_record_secs"]["median"] for item in figures.values()),
        peer=None,
        ratio=None,
        unit="s",
        details={"models": figures, "asked_secs": 30, "threads": cores()},
    )


def table(result: Mapping[str, Any]) -> str:
    rows = [
        (
            f"`{model}`",
            median_and_range(figures["first_record_secs"], digits=1),
            median_and_range(figures["stop_secs"], digits=1),
        )
        for model, figures in result["details"]["models"].items()
    ]
    return markdown(("model", "s to the first record", "s from SIGTERM to the end"), rows)


BENCHMARK = Benchmark(
    name="first-record",
    help="Seconds from starting `fleet-tune tune` to its first record.",
    options=(
        click.Option(["--model", "models"], multiple=True, default=[options.RESNET18], show_default=True),
        options.count("--rounds", 5),
    ),
    short=("--rounds", "3"),
    run=run,
    table=table,
)
