"""Single operators: ours against MetaSchedule with the same tuning time, and against the best of the frameworks.

Every operator of :mod:`bench.networks.operator_modules` is a network of its own. Both tuners tune it for the same time
without earlier records. Then all sides are timed in turn as in :mod:`bench.latency.network_latency`. If a side cannot
run an operator, ``failures`` has the reason, and the other sides are compared.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.latency.network_latency import PEERS, measure_sides
from bench.machine import bench_env, cores
from bench.networks.operator_names import operator_names
from bench.processes import run_json
from bench.result import BenchError, BenchResult
from bench.tables import markdown
from fleet_tune.base.records.files.atomic_file import write_atomically

TUNERS = ("ours", "metaschedule")

# Requirements: no operator is slower than MetaSchedule's, and none takes more than 1.5 times the best framework's time.
# The factor for MetaSchedule is above 1 because timings of equal programs differ by a few per cent between processes.
_SAME = 1.05
_BEHIND = 1.5


def run(
    names: Sequence[str], budget_secs: float, rounds: int, block_secs: float, seed: int, parts: Path | None = None
) -> BenchResult:
    """Tune each operator of ``names`` (empty: all operators) for ``budget_secs`` with each tuner, and time all sides.

    All operators together take hours. With a folder ``parts``, each operator's figures are kept in a file there, and
    operators that have a file are not measured again. The sides of one operator are timed together, so files from
    different days can be combined. Raise :class:`BenchError` if a file was measured with other settings, or if no
    operator was compiled by both tuners.

    ``ours`` and ``peer`` (MetaSchedule) are geometric means of median milliseconds over the operators that both run.
    """
    settings = {"budget_secs": budget_secs, "rounds": rounds, "block_secs": block_secs, "seed": seed}
    figures: dict[str, Any] = {}
    for name in names or operator_names():
        part = parts / f"{name}.json" if parts else None
        if part and part.exists():
            figures[name] = _read_part(part, settings)
            continue
        figures[name] = _operator(name, budget_secs, rounds, block_secs, seed)
        if part:
            part.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(part, json.dumps({"settings": settings, "figures": figures[name]}, indent=1).encode())
        click.echo(json.dumps({name: {key: figures[name][key] for key in ("median_ms", "failures")}}), err=True)
    return operators_result(figures, budget_secs)


def _read_part(part: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(part.read_text())
    if kept["settings"] != settings:
        raise BenchError(f"{part} was measured with {kept['settings']}: remove it, or name another folder as --parts")
    figures: dict[str, Any] = kept["figures"]
    return figures


def operators_result(figures: Mapping[str, Mapping[str, Any]], budget_secs: float) -> BenchResult:
    """Return the benchmark's result from the ``median_ms`` and ``ratios`` of every operator.

    Raise :class:`BenchError` if no operator was compiled by both tuners.
    """
    both = [f["median_ms"] for f in figures.values() if all(tuner in f["median_ms"] for tuner in TUNERS)]
    if not both:
        raise BenchError(f"no operator was compiled by both tuners: {figures}")
    ours, peer = (statistics.geometric_mean([medians[tuner] for medians in both]) for tuner in TUNERS)
    details = {
        "operators": figures,
        "slower_than_metaschedule": [name for name, f in figures.items() if _above(f, "metaschedule", _SAME)],
        "behind_frameworks": [name for name, f in figures.items() if _above(f, "best_framework", _BEHIND)],
        "threads": cores(),
        "budget_secs": budget_secs,
    }
    return BenchResult("operators", ours=ours, peer=peer, ratio=peer / ours, unit="ms", details=details)


def _operator(name: str, budget_secs: float, rounds: int, block_secs: float, seed: int) -> dict[str, Any]:
    model = f"bench/networks/operator_modules.py:{name}"
    failures: dict[str, str] = {}

    def attempt(side: str, act: Callable[..., dict[str, Any]], *args: Any, **options: Any) -> dict[str, Any]:
        """Return the figures; empty if the side fails. The reason is then in ``failures``."""
        try:
            return act(*args, **options)
        except BenchError as error:
            failures[side] = str(error).strip().splitlines()[-1][:300]
            return {}

    with tempfile.TemporaryDirectory(prefix="fleet-tune-bench-") as folder:
        folders = {tuner: Path(folder) / tuner for tuner in TUNERS}
        limits = ["--budget-secs", str(budget_secs)]
        commands = {
            "ours": ["-m", "bench.tuning.tune_process", model, str(folders["ours"]), *limits, "--seed", str(seed)],
            "metaschedule": ["-m", "bench.peers.metaschedule_network", model, str(folders["metaschedule"]), *limits],
        }
        tuning = {tuner: attempt(tuner, _tuned, command, budget_secs) for tuner, command in commands.items()}
        sides = [tuner for tuner in TUNERS if tuning[tuner]] + list(PEERS)
        # Each side alone first: a side that cannot run must not stop the others.
        once: dict[str, Any] = {"folders": folders, "rounds": 1, "block_secs": 0.05}
        able = [side for side in sides if attempt(side, measure_sides, model, [side], **once)]
        together: dict[str, Any] = {"folders": folders, "rounds": rounds, "block_secs": block_secs}
        timed = attempt("all in turn", measure_sides, model, able, **together)
    medians = {side: f["secs"]["median"] * 1e3 for side, f in timed.items()}
    return {
        "median_ms": medians,
        "ratios": ratios(medians),
        "failures": failures,
        "trials": {tuner: tuning[tuner]["valid"] for tuner in TUNERS if tuning[tuner]},
        "sides": timed,
    }


def _tuned(args: Sequence[str], budget_secs: float) -> dict[str, Any]:
    return run_json(args, env=bench_env(cores()), timeout_secs=budget_secs + 600)


def ratios(medians: Mapping[str, float]) -> dict[str, float]:
    """Return our time divided by MetaSchedule's and by the best framework's. Ours is faster if a ratio is below 1."""
    if "ours" not in medians:
        return {}
    frameworks = [medians[side] for side in PEERS if side in medians]
    ratios = {"best_framework": medians["ours"] / min(frameworks)} if frameworks else {}
    if "metaschedule" in medians:
        ratios["metaschedule"] = medians["ours"] / medians["metaschedule"]
    return ratios


def _above(figures: Mapping[str, Any], peer: str, limit: float) -> bool:
    """Return true if our time is more than ``limit`` times that of ``peer``, or if we have no time."""
    if "ours" not in figures["median_ms"]:
        return True
    return peer in figures["ratios"] and figures["ratios"][peer] > limit


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    columns = (*TUNERS, *PEERS)
    rows = []
    for name, figures in details["operators"].items():
        ratios = figures["ratios"]
        rows.append(
            (
                f"`{name}`",
                *(f"{figures['median_ms'][side]:.3f}" if side in figures["median_ms"] else "fails" for side in columns),
                *(f"{1 / ratios[peer]:.2f}" if peer in ratios else "-" for peer in ("metaschedule", "best_framework")),
            )
        )
    names = ("ours", "MetaSchedule", "eager", "torch.compile", "ONNX Runtime")
    return markdown(("ms a run", *names, "faster than MetaSchedule by", "than the best framework by"), rows)


BENCHMARK = Benchmark(
    name="operators",
    help="Single operators: ours against MetaSchedule for the same time, and against the best framework.",
    options=(
        click.Option(
            ["--operator", "names"],
            multiple=True,
            type=click.Choice(operator_names()),
            help="Only this one; repeatable.",
        ),
        options.seconds("--budget", "budget_secs", 120.0, "Seconds of tuning for each operator and tuner."),
        options.count("--rounds", 9, "Blocks of runs of each side."),
        options.seconds("--block-secs", "block_secs", 0.3, "Length of a block."),
        click.Option(["--seed"], type=int, default=0, show_default=True),
        click.Option(
            ["--parts"],
            type=click.Path(path_type=Path),
            help="Folder where each operator's figures are kept: the same command goes on where it was interrupted.",
        ),
    ),
    short=("--operator", "conv2d_transposed", "--operator", "softmax", "--operator", "gather", "--budget", "60"),
    run=run,
    table=table,
)
