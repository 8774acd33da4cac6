"""The methods of the papers on our runtime: each tunes the same networks without earlier records, with several seeds.

A run tunes a network by a method with a seed, for a number of trials or seconds, without shipped records, a store, or a
pre-trained model. Only MoA-Pruner has a pre-trained model, since it adapts one by definition; its row and its claim say
so. The curve of a run is the estimated latency of the network against trials, seconds since the start of the process,
and device seconds.

The table shows the claim of a paper against its baseline beside the ratio that this runtime measures. The target is the
last latency of the baseline (median over the seeds), and a latency within 2% of it reaches it. The ratio is the trials
or seconds that the baseline needs for the target, divided by those that the method needs. A run that does not reach the
target counts as infinite. The table also has the measured latency of the compiled networks. The claim of Pruner against
MetaSchedule is tested by ``bench time-to-quality --method pruner``.

The papers give each method the same number of trials. A method uses its model only after the first round of a task, so
a run with few trials does not evaluate the model; a column has the number of tasks that were searched beyond their
first round. Pruner's baseline measures ten candidates a round and lets sketches compete, as the paper and Ansor's code
do (``ansor:rounds-10:joint``). Pruner drafts by its published equation here; plain ``pruner`` has our analyzer. AutoTVM
and AdaTune run each candidate up to 500 times, as in AdaTune's paper, so their seconds are only comparable with each
other.

Each run is a piece with its own file in the folder ``work``, as in :mod:`bench.tuning.time_to_quality`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.machine import bench_env, cores
from bench.processes import run_json
from bench.result import BenchError, BenchResult
from bench.tables import markdown
from bench.tuning.curve_pictures import method_pictures
from bench.tuning.pieces import (
    Piece,
    Sitting,
    model_folder,
    models_option,
    sitting_options,
    sources,
    sources_text,
    work_folder,
)
from fleet_tune.base.records.sharing.shared import SHIPPED_VARIABLE, STORE_VARIABLE
from policies.search.methods.registry import method_named

_FINISH_SECS = 1800.0
_EXTRA_SECS = 120.0
"""Expected seconds of a run beyond its budget: its start, and the compilation and check of its network."""
_ADAPTS = "moa-pruner"
"""The method that starts from a pre-trained model in its paper."""
UNITS = {"trials": "Times fewer trials", "secs": "Times less time"}
"""Units in which methods are compared, with the title of their table."""
_POINTS = 60
"""Approximate number of points of a curve that are kept."""
_AS_FAST = 1.02
"""Largest latency that counts as the baseline's last latency, as a multiple of it."""


@dataclass(frozen=True)
class Claim:
    """A claim of a paper about its method against a baseline. ``method`` and ``baseline``: names of the runtime's
    methods that stand for them."""

    paper: str
    method: str
    baseline: str
    text: str


CLAIMS = (
    Claim("AdaTune, figure 6 and table 3", "adatune", "autotvm", "1.3 to 3.9 times less time; networks 1.7 to 2.9"),
    Claim(
        "Bansor, table IV",
        "bansor:rounds-16",
        "ansor:rounds-16",
        "1.1 to 26.5 times fewer trials; DCGAN on a CPU 5.05",
    ),
    Claim("Pruner, section 1", "pruner:equation-1", "ansor:rounds-10:joint", "2.6 times less time, on GPUs"),
    Claim("Pruner, section 1", "moa-pruner:equation-1", "ansor:rounds-10:joint", "4.82 times less time, on GPUs"),
)
_METHODS = ("fleet", *dict.fromkeys(name for claim in CLAIMS for name in (claim.method, claim.baseline)), "random")


@dataclass(frozen=True)
class MethodRun(Piece):
    """One run of a method. ``trials``: limit of its trials beside ``budget_secs``; None for no such limit."""

    method: str
    seed: int
    budget_secs: float
    trials: int | None

    @property
    def name(self) -> str:
        limit = f"{self.budget_secs:g} s" if self.trials is None else f"{self.trials} trials"
        return f"{self.model}: {self.method}, seed {self.seed}, {limit}"

    @property
    def expected_secs(self) -> float:
        return self.budget_secs + _EXTRA_SECS

    def take(self) -> dict[str, Any]:
        out = self.place / "network"
        command = ["-m", "bench.tuning.tune_process", self.model, str(out), "--budget-secs", str(self.budget_secs)]
        command += [] if self.trials is None else ["--trials", str(self.trials)]
        command += ["--method", self.method, "--seed", str(self.seed), "--curve"]
        command += [] if _is_pretrained(self.method) else ["--no-pretrained"]
        environment = bench_env(cores(), **{STORE_VARIABLE: "", SHIPPED_VARIABLE: ""}, **self.own_cache)
        return run_json(command, env=environment, timeout_secs=self.budget_secs + _FINISH_SECS)


def runs(
    models: Sequence[str], methods: Sequence[str], seeds: int, budget_secs: float, trials: int | None, work: Path
) -> Iterator[Piece]:
    """Yield all runs, sorted by seed, so that an unfinished benchmark has all methods."""
    for seed in range(seeds):
        for model in models:
            for method in methods:
                name = method.replace(":", "-") + ("-pretrained" if _is_pretrained(method) else "")
                folder = model_folder(work, model) / f"{name}-{seed}-{trials or f'{budget_secs:g}s'}"
                yield MethodRun(model, folder, method, seed, budget_secs, trials)


def _is_pretrained(method: str) -> bool:
    return method.partition(":")[0] == _ADAPTS


def run(
    models: Sequence[str],
    methods: Sequence[str],
    seeds: int,
    budget_secs: float,
    trials: int | None,
    work: Path,
    resume: bool,
    piece_count: int,
    sitting_secs: float,
) -> BenchResult | None:
    """Run the missing pieces and return the result; None while pieces are missing.

    ``ours``: how many times fewer trials the first method needs for the last latency of another method, as the
    geometric mean over the models; the smallest such value of all other methods. Raises :class:`BenchError` for a
    single method.
    """
    if len(methods) < 2:
        raise BenchError("a comparison needs two methods: give --methods with a comma between them")
    every = list(runs(models, methods, seeds, budget_secs, trials, work))
    with work_folder(work):
        if not Sitting(piece_count, sitting_secs, anew=not resume).run(every):
            return None
    curves = {
        model: {
            method: [each.figures() for each in every if (each.model, _method_of(each)) == (model, method)]
            for method in methods
        }
        for model in models
    }
    wanted = [claim for claim in CLAIMS if {claim.method, claim.baseline} <= {*methods}]
    against = {
        unit: {
            method: {other: less(curves, method, other, unit)["mean"] for other in methods if other != method}
            for method in methods
        }
        for unit in UNITS
    }
    ours = min(against["trials"][methods[0]].values())
    return BenchResult(
        "methods",
        ours=ours,
        peer=1.0,
        ratio=ours,
        unit="times fewer trials",
        details={
            "methods": list(methods),
            "seeds": seeds,
            "budget_secs": budget_secs,
            "limit_trials": trials,
            "pretrained": [method for method in methods if _is_pretrained(method)],
            "threads": cores(),
            "sources": sources(every),
            "claims": [
                {**asdict(claim), **{unit: less(curves, claim.method, claim.baseline, unit) for unit in UNITS}}
                for claim in wanted
            ],
            "against": against,
            "models": {model: {name: _kept(name, found) for name, found in of.items()} for model, of in curves.items()},
        },
    )


def _method_of(piece: Piece) -> str:
    assert isinstance(piece, MethodRun)
    return piece.method


Curves = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
"""Figures of each seed, by model and method."""


def less(curves: Curves, method: str, baseline: str, unit: str) -> dict[str, Any]:
    """Return how many times less of ``unit`` a method needs than its baseline for the baseline's last latency.

    ``by_model`` has the median over the seeds for each model (0 if the method does not reach that latency), ``spread``
    the smallest and the largest value of its seeds for each model, and ``mean`` the geometric mean over the models (0
    if it is 0 for one of them).
    """
    found = {model: _less(of[method], of[baseline], unit) for model, of in curves.items()}
    medians = [median for median, _ in found.values()]
    return {
        "by_model": {model: median for model, (median, _) in found.items()},
        "spread": {model: spread for model, (_, spread) in found.items()},
        "mean": statistics.geometric_mean(medians) if all(medians) else 0.0,
    }


def _less(
    method: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]], unit: str
) -> tuple[float, list[float]]:
    # The high median: with an even number of seeds, most seeds of the baseline reach this latency.
    last = _AS_FAST * statistics.median_high(seed["curve"][-1]["latency"] for seed in baseline)
    theirs = statistics.median_high(_needed(seed["curve"], last, unit) for seed in baseline)
    ours = [_needed(seed["curve"], last, unit) for seed in method]
    return theirs / statistics.median_high(ours), [theirs / max(ours), theirs / min(ours)]  # 0: division by infinity


def _needed(curve: Sequence[Mapping[str, float]], latency: float, unit: str) -> float:
    return min((point[unit] for point in curve if point["latency"] <= latency), default=math.inf)


def _kept(method: str, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first_round = method_named(method).batch
    return {
        "curves": [_thinned(seed["curve"]) for seed in seeds],
        "latency": [seed["tuned_secs"] for seed in seeds],
        "trials": [seed["trials"] for seed in seeds],
        "tasks": len(seeds[0]["task_results"]),
        "searched": [sum(task["trials"] > first_round for task in seed["task_results"]) for seed in seeds],
    }


def _thinned(curve: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Return a curve with fewer points. It keeps the first and the last point."""
    step = max(1, math.ceil((len(curve) - 1) / (_POINTS - 1)))
    return [*curve[:-1:step], curve[-1]]


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]

    def times(value: float) -> str:
        return f"{value:.2f}" if value else "not reached"

    def called(method: str) -> str:
        return f"{method}, pre-trained" if method in pretrained else method

    def by_network(found: Mapping[str, Any]) -> str:
        return ", ".join(
            f"{names[model]} {times(value)} ({' to '.join(map(times, found['spread'][model]))})"
            for model, value in found["by_model"].items()
        )

    pretrained = details.get("pretrained", [])
    names = {model: model.rpartition(":")[2] for model in details["models"]}
    claims = [
        (
            claim["paper"],
            f"{called(claim['method'])} against {called(claim['baseline'])}",
            claim["text"],
            *(cell for unit in UNITS for cell in (times(claim[unit]["mean"]), by_network(claim[unit]))),
        )
        for claim in details["claims"]
    ]
    rows = [
        (
            f"`{names[model]}`, {called(method)}",
            f"{statistics.median(found['trials']):.0f}",
            f"{statistics.median(found['searched']):.0f} of {found['tasks']}",
            f"{1e3 * statistics.median(curve[-1]['latency'] for curve in found['curves']):.2f}",
            f"{1e3 * statistics.median(found['latency']):.2f}",
        )
        for model, of in details["models"].items()
        for method, found in of.items()
    ]
    limit = (
        f"{details['budget_secs']:g} s"
        if details["limit_trials"] is None
        else f"{details['limit_trials']} trials, {details['budget_secs']:g} s at most"
    )
    seeds = f"{details['seeds']} seed{'s' if details['seeds'] > 1 else ''} of {limit}, no records"
    header = (seeds, "trials", "tasks searched beyond a first round", "ms estimated", "ms a run")
    parts = [markdown(header, rows)]
    for unit, words in UNITS.items():
        of_unit = details["against"][unit]
        matrix = {called(m): {called(o): t for o, t in of.items()} for m, of in of_unit.items()}
        parts += [f"{words} of the row's method for the last latency of the column's:", _matrix(matrix, times)]
    parts.append(sources_text(details["sources"]))
    if claims:
        columns = (
            "claim",
            "methods",
            "in the paper",
            *(f"{at}, {unit}" for unit in UNITS for at in ("here", "by seed")),
        )
        parts.append(markdown(columns, claims))
    return "\n\n".join(parts)


def _matrix(against: Mapping[str, Mapping[str, float]], times: Any) -> str:
    names = list(against)
    rows = [(name, *(times(against[name][other]) if other != name else "" for other in names)) for name in names]
    return markdown(("", *names), rows)


BENCHMARK = Benchmark(
    name="methods",
    help="The methods of the papers on our runtime: networks tuned without earlier records, with several seeds.",
    options=(
        models_option(options.DCGAN),
        click.Option(
            ["--methods"],
            callback=options.methods_named,
            default=",".join(_METHODS),
            show_default=True,
            help="Methods with commas between them.",
        ),
        options.count("--seeds", 5, "Seeds of each method on each network."),
        options.seconds("--budget", "budget_secs", 600.0, "Seconds of each run, at most."),
        click.Option(
            ["--trials"], type=click.IntRange(min=1), help="Trials of each run; else its seconds alone count."
        ),
        *sitting_options("bench-out/methods"),
    ),
    short=(
        *("--models", "examples/networks.py:small_cnn", "--methods", "fleet,ansor:rounds-10"),
        *("--seeds", "1", "--budget", "60"),
    ),
    run=run,
    table=table,
    pictures=method_pictures,
)
