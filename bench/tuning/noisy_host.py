"""Tuning on a noisy host: a run while another process takes one core now and then, against a run on the quiet machine.

Both runs have the same model, seed and budget. Afterwards their networks are timed in turn on the quiet machine. The
noisy run has to yield a network, with a latency of at most 1.05 times that of the quiet run, and at least 0.9 times its
trials a minute in quiet time.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.latency.network_latency import measure_sides
from bench.machine import bench_env, cores
from bench.processes import end_group, run_json
from bench.result import BenchResult
from bench.tables import markdown, median_and_range

QUIET, NOISY = SIDES = ("quiet", "noisy")
SPAN_SECS = (5.0, 30.0)
"""Range of the seconds that the noise lasts each time, and of the silence before it. Both are drawn uniformly."""

_SPIN = "while True: pass"
_ASKED_LATENCY, _ASKED_TRIALS = 1.05, 0.9

Spans = Sequence[tuple[float, float]]


class Noise:
    """Context manager that runs a process that takes one core, for random spans of time. ``spans``: begin and end of
    each span, in seconds since 1970."""

    def __init__(self, seed: int) -> None:
        self.spans: list[tuple[float, float]] = []
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Noise:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._rng.uniform(*SPAN_SECS)):
            began = time.time()
            child = subprocess.Popen([sys.executable, "-c", _SPIN], start_new_session=True)
            try:
                self._over.wait(self._rng.uniform(*SPAN_SECS))
            finally:
                end_group(child)
            self.spans.append((began, time.time()))


def quiet_rate(trials: Sequence[float], noise: Spans) -> float | None:
    """Return the trials a minute between the first and the last trial, outside of the spans of ``noise``. None with
    fewer than two trials, or if at most one second was quiet. ``trials``: time at which each trial was stored. All
    times are seconds since 1970."""
    if len(trials) < 2:
        return None
    first, last = min(trials), max(trials)
    clipped = [(max(begin, first), min(end, last)) for begin, end in noise]
    quiet_secs = last - first - sum(max(0.0, end - begin) for begin, end in clipped)
    inside = sum(any(begin <= at < end for begin, end in noise) for at in trials)
    # The first trial only starts the clock.
    return 60 * (len(trials) - inside - 1) / quiet_secs if quiet_secs > 1 else None


def run(model: str, budget_secs: float, rounds: int, block_secs: float, seed: int) -> BenchResult:
    """Tune and time both networks. ``ours``: milliseconds of the network from the noisy run; ``peer``: of the network
    from the quiet run."""
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        folders = {side: Path(folder) / side for side in SIDES}
        tuning = {QUIET: _tuned(model, folders[QUIET], budget_secs, seed)}
        with Noise(seed) as noise:
            tuning[NOISY] = _tuned(model, folders[NOISY], budget_secs, seed)
        spans = {QUIET: [], NOISY: noise.spans}
        rates = {side: quiet_rate(_stored(folders[side]), spans[side]) for side in SIDES}
        published = {side: Path(tuning[side]["folder"]) for side in SIDES}
        timed = measure_sides(
            model, SIDES, folders=published, rounds=rounds, block_secs=block_secs, kinds=dict.fromkeys(SIDES, "ours")
        )
    medians = {side: timed[side]["secs"]["median"] for side in SIDES}
    quiet, noisy = rates[QUIET], rates[NOISY]
    return BenchResult(
        "noisy-host",
        ours=medians[NOISY] * 1e3,
        peer=medians[QUIET] * 1e3,
        ratio=medians[QUIET] / medians[NOISY],
        unit="ms",
        details={
            "model": model,
            "budget_secs": budget_secs,
            "threads": cores(),
            "noise_secs": sum(end - begin for begin, end in noise.spans),
            "trials_a_minute_in_quiet_time": rates,
            "trial_ratio": noisy / quiet if quiet and noisy else None,
            "asked": {"latency": _ASKED_LATENCY, "trial_ratio": _ASKED_TRIALS},
            "sides": {side: {"secs": timed[side]["secs"], "trials": tuning[side]["trials"]} for side in SIDES},
        },
    )


def _tuned(model: str, out: Path, budget_secs: float, seed: int) -> dict[str, Any]:
    return run_json(
        ["-m", "bench.tuning.tune_process", model, str(out), "--budget-secs", str(budget_secs), "--seed", str(seed)],
        env=bench_env(cores()),
        timeout_secs=budget_secs + 900,
    )


def _stored(out: Path) -> list[float]:
    """Return the time at which each valid trial was stored, in seconds since 1970."""
    from fleet_tune.base.domain import Outcome
    from fleet_tune.base.records.stores.reader import RecordReader

    with RecordReader(out / "records.db") as reader:
        records = [each for each in reader if each.revision == 0 and each.measurement.outcome is Outcome.OK]
    return [each.unix_secs for each in records]


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    names = {QUIET: "on the quiet machine", NOISY: f"beside {details['noise_secs']:.0f} s of noise"}
    rows = [
        (
            names[side],
            median_and_range(details["sides"][side]["secs"], scale=1e3),
            str(details["sides"][side]["trials"]),
            _number(details["trials_a_minute_in_quiet_time"][side]),
        )
        for side in SIDES
    ]
    return markdown((f"`{details['model']}`, tuned", "ms a run", "trials", "trials a minute in quiet time"), rows)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.0f}"


BENCHMARK = Benchmark(
    name="noisy-host",
    help="A run beside a process that takes one core now and then, against one on the quiet machine.",
    options=(
        click.Option(["--model"], default=options.RESNET18, show_default=True, help="file.py:function"),
        options.seconds("--budget", "budget_secs", 300.0, "Seconds of tuning, of each run."),
        options.count("--rounds", 15, "Blocks of runs of each side."),
        options.seconds("--block-secs", "block_secs", 1.0, "Length of a block."),
        click.Option(["--seed"], type=int, default=0, show_default=True),
    ),
    short=("--budget", "120", "--rounds", "8"),
    run=run,
    table=table,
)
