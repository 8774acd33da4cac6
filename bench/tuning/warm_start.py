"""Time that a shared store saves: the same network again, and a second, similar network.

A first network is tuned cold, and its records go to a store. Then it is tuned again with that store, into another
folder. A second network is tuned cold, without a store, and warm: with the store and a part of the time. The networks
of the cold and the warm run are timed in turn. Required: the first network compiles again in under 30 s without
a trial, and the warm run of the second network reaches the latency of its cold run in a fifth of the time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.latency.network_latency import measure_sides
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchResult
from bench.tables import markdown, median_and_range
from fleet_tune.base.records.sharing.shared import SHIPPED_VARIABLE, STORE_VARIABLE

COLD, WARM = SIDES = ("cold", "warm")
ASKED_AGAIN_SECS = 30.0
ASKED_TIMES = 5.0
SAME_LATENCY = 1.05
"""Largest latency of the warm network that counts as that of the cold network, as a multiple of it."""


def run(
    model: str, second: str, budget_secs: float, share: float, rounds: int, block_secs: float, seed: int
) -> BenchResult:
    """Tune both networks and time the second. ``ours``: seconds of the second network's run with the store, from the
    start of the process to the compiled network; ``peer``: seconds of its run without the store. ``ratio``: None if the
    latency of the cold run was not reached. ``share``: number by which the budget of the warm run is divided."""
    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as text:
        folder = Path(text)
        store = str(folder / "store.db")
        first = _tuned(model, folder / "first", budget_secs, seed, store)
        again = _tuned(model, folder / "again", budget_secs, seed, store)
        cold = _tuned(second, folder / COLD, budget_secs, seed, "")
        warm = _tuned(second, folder / WARM, budget_secs / share, seed, store)
        tuned = {COLD: cold, WARM: warm}
        timed = measure_sides(
            second,
            SIDES,
            folders={side: Path(tuned[side]["folder"]) for side in SIDES},
            rounds=rounds,
            block_secs=block_secs,
            kinds=dict.fromkeys(SIDES, "ours"),
        )
    medians = {side: timed[side]["secs"]["median"] for side in SIDES}
    latency = medians[WARM] / medians[COLD]
    return BenchResult(
        "warm-start",
        ours=warm["elapsed_secs"],
        peer=cold["elapsed_secs"],
        ratio=cold["elapsed_secs"] / warm["elapsed_secs"] if latency <= SAME_LATENCY else None,
        unit="s",
        details={
            "model": model,
            "second": second,
            "budget_secs": budget_secs,
            "share": share,
            "threads": cores(),
            "first": _run_figures(first),
            "again": _run_figures(again),
            "asked": {"again_secs": ASKED_AGAIN_SECS, "times": ASKED_TIMES, "latency": SAME_LATENCY},
            "latency_ratio": latency,
            "sides": {side: {"secs": timed[side]["secs"], **_run_figures(tuned[side])} for side in SIDES},
        },
    )


def _tuned(model: str, out: Path, budget_secs: float, seed: int, store: str) -> dict[str, Any]:
    return run_json(
        ["-m", "bench.tuning.tune_process", model, str(out), "--budget-secs", str(budget_secs), "--seed", str(seed)],
        env=bench_env(cores(), **{STORE_VARIABLE: store, SHIPPED_VARIABLE: ""}),
        timeout_secs=budget_secs + 900,
    )


def _run_figures(tuned: Mapping[str, Any]) -> dict[str, Any]:
    names = ("elapsed_secs", "trials", "tuned_secs", "untuned_secs", "store")
    return {name: tuned[name] for name in names}


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    first, again = details["first"], details["again"]
    rows = [
        (f"`{details['model']}`, cold", f"{first['elapsed_secs']:.0f}", str(first["trials"]), _ms(first)),
        ("the same again", f"{again['elapsed_secs']:.0f}", str(again["trials"]), _ms(again)),
    ]
    for side in SIDES:
        figures = details["sides"][side]
        latency = median_and_range(figures["secs"], scale=1e3)
        rows.append(
            (f"`{details['second']}`, {side}", f"{figures['elapsed_secs']:.0f}", str(figures["trials"]), latency)
        )
    return markdown(("", "s from start to network", "trials", "ms a run"), rows)


def _ms(figures: Mapping[str, Any]) -> str:
    """Return the latency that the run itself measured, in milliseconds."""
    return f"{figures['tuned_secs'] * 1e3:.2f}"


BENCHMARK = Benchmark(
    name="warm-start",
    help="The same network again, and a second, similar one, with a store of earlier runs.",
    options=(
        click.Option(["--model"], default=options.RESNET18, show_default=True, help="file.py:function"),
        click.Option(
            ["--second"], default="examples/networks.py:resnet34", show_default=True, help="A similar network."
        ),
        options.seconds("--budget", "budget_secs", 600.0, "Seconds of tuning, of each cold run."),
        options.seconds("--share", "share", ASKED_TIMES, "The warm run has the budget divided by this."),
        options.count("--rounds", 15, "Blocks of runs of each side."),
        options.seconds("--block-secs", "block_secs", 1.0, "Length of a block."),
        click.Option(["--seed"], type=int, default=0, show_default=True),
    ),
    short=(
        "--model",
        "bench/networks/similar_networks.py:narrow",
        "--second",
        "bench/networks/similar_networks.py:wide",
        "--budget",
        "20",
        "--rounds",
        "6",
    ),
    run=run,
    table=table,
)
