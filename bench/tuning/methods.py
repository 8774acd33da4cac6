"""The methods of the papers on our runtime: each tunes the same networks without earlier records, with several seeds.

A run is one of a method on a network with a seed, for a given time, without shipped records or a store, and without a
pre-trained model: but MoA-Pruner adapts one by definition, and has it, as its row and its claim say. Its curve is the
estimated latency of the network against seconds since the start of the process, trials and seconds of the device. What
a paper claims against its baseline is set beside what this runtime measures: the seconds, or trials, that the baseline
needs for its own last latency (the median over the seeds), relative to those that the method needs for it. A run that
does not reach it counts as infinite. In the end stands the measured latency of the compiled networks. What Pruner
claims against MetaSchedule is ``bench time-to-quality --method pruner``.

Each run is a piece with a file of its own in the folder ``work``, as in :mod:`bench.tuning.time_to_quality`.
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
from policies.search.methods.registry import METHOD_NAMES

_FINISH_SECS = 1800.0
_EXTRA_SECS = 120.0
"""Of a run beyond its budget: its start, and the compilation and check of its network."""
_ADAPTS = "moa-pruner"
"""The method that begins with a pre-trained model in its paper."""
_POINTS = 60
"""Points of a curve that are kept."""


@dataclass(frozen=True)
class Claim:
    """What a paper says about its method."""

    paper: str
    method: str
    baseline: str
    unit: str
    """``secs`` or ``trials``: what the method needs less of."""
    text: str


CLAIMS = (
    Claim("AdaTune, figure 6", "adatune", "autotvm", "secs", "1.3 to 3.9 times less time"),
    Claim("Bansor, table IV", "bansor", "ansor", "trials", "up to 26.5 times fewer trials"),
    Claim("Pruner, section 1", "pruner", "ansor", "secs", "2.6 times less time"),
    Claim("Pruner, section 1", "moa-pruner", "ansor", "secs", "4.82 times less time"),
)


@dataclass(frozen=True)
class MethodRun(Piece):
    """One run of a method."""

    method: str
    seed: int
    budget_secs: float

    @property
    def name(self) -> str:
        return f"{self.model}: {self.method}, seed {self.seed}, {self.budget_secs:g} s"

    @property
    def expected_secs(self) -> float:
        return self.budget_secs + _EXTRA_SECS

    def take(self) -> dict[str, Any]:
        out = self.place / "network"
        command = ["-m", "bench.tuning.tune_process", self.model, str(out), "--budget-secs", str(self.budget_secs)]
        command += ["--method", self.method, "--seed", str(self.seed), "--curve"]
        command += [] if _is_pretrained(self.method) else ["--no-pretrained"]
        environment = bench_env(cores(), **{STORE_VARIABLE: "", SHIPPED_VARIABLE: ""}, **self.own_cache)
        return run_json(command, env=environment, timeout_secs=self.budget_secs + _FINISH_SECS)


def runs(models: Sequence[str], methods: Sequence[str], seeds: int, budget_secs: float, work: Path) -> Iterator[Piece]:
    """Yield all runs: one seed of every method before the next, so that an unfinished benchmark has all methods."""
    for seed in range(seeds):
        for model in models:
            for method in methods:
                name = method.replace(":", "-") + ("-pretrained" if _is_pretrained(method) else "")
                folder = model_folder(work, model) / f"{name}-{seed}-{budget_secs:g}"
                yield MethodRun(model, folder, method, seed, budget_secs)


def _is_pretrained(method: str) -> bool:
    return method.partition(":")[0] == _ADAPTS


def run(
    models: Sequence[str],
    methods: Sequence[str],
    seeds: int,
    budget_secs: float,
    work: Path,
    resume: bool,
    piece_count: int,
    sitting_secs: float,
) -> BenchResult | None:
    """``ours``: how many times less time the first method needs than the second for the latter's last latency, the
    geometric mean over the models. None, and no result, while pieces are missing."""
    if len(methods) < 2:
        raise BenchError("a comparison needs two methods: give --methods with a comma between them")
    every = list(runs(models, methods, seeds, budget_secs, work))
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
    first = less(curves, methods[0], methods[1], "secs")
    return BenchResult(
        "methods",
        ours=first["mean"],
        peer=1.0,
        ratio=first["mean"],
        unit="times less time",
        details={
            "methods": list(methods),
            "seeds": seeds,
            "budget_secs": budget_secs,
            "pretrained": [method for method in methods if _is_pretrained(method)],
            "threads": cores(),
            "sources": sources(every),
            "claims": [{**asdict(claim), **less(curves, claim.method, claim.baseline, claim.unit)} for claim in wanted],
            "against": {
                method: {other: less(curves, method, other, "secs")["mean"] for other in methods if other != method}
                for method in methods
            },
            "models": {model: {name: _kept(found) for name, found in of.items()} for model, of in curves.items()},
        },
    )


def _method_of(piece: Piece) -> str:
    assert isinstance(piece, MethodRun)
    return piece.method


Curves = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
"""Figures of each seed, by model and method."""


def less(curves: Curves, method: str, baseline: str, unit: str) -> dict[str, Any]:
    """Return how many times less of ``unit`` a method needs than its baseline: the median over the seeds ``by_model``
    (0: it does not reach the baseline's last latency) and the geometric ``mean`` over the models (0 if one is)."""
    by_model = {model: _less(of[method], of[baseline], unit) for model, of in curves.items()}
    found = list(by_model.values())
    return {"by_model": by_model, "mean": statistics.geometric_mean(found) if all(found) else 0.0}


def _less(method: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]], unit: str) -> float:
    # The high median: with an even number of seeds, most of the baseline's own reach it.
    last = statistics.median_high(seed["curve"][-1]["latency"] for seed in baseline)
    ours, theirs = (
        statistics.median_high(_needed(seed["curve"], last, unit) for seed in of) for of in (method, baseline)
    )
    return 0.0 if math.isinf(ours) else theirs / ours


def _needed(curve: Sequence[Mapping[str, float]], latency: float, unit: str) -> float:
    return min((point[unit] for point in curve if point["latency"] <= latency), default=math.inf)


def _kept(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "curves": [_thinned(seed["curve"]) for seed in seeds],
        "latency": [seed["tuned_secs"] for seed in seeds],
        "trials": [seed["trials"] for seed in seeds],
    }


def _thinned(curve: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Return a curve with fewer points, the first and the last among them."""
    step = max(1, math.ceil((len(curve) - 1) / (_POINTS - 1)))
    return [*curve[:-1:step], curve[-1]]


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]

    def times(value: float) -> str:
        return f"{value:.2f}" if value else "not reached"

    def called(method: str) -> str:
        return f"{method}, pre-trained" if method in pretrained else method

    pretrained = details.get("pretrained", [])
    names = {model: model.rpartition(":")[2] for model in details["models"]}
    claims = [
        (
            claim["paper"],
            f"{called(claim['method'])} against {called(claim['baseline'])}",
            claim["text"],
            times(claim["mean"]),
            ", ".join(f"{names[model]} {times(value)}" for model, value in claim["by_model"].items()),
        )
        for claim in details["claims"]
    ]
    rows = [
        (
            f"`{names[model]}`, {called(method)}",
            f"{statistics.median(found['trials']):.0f}",
            f"{1e3 * statistics.median(curve[-1]['latency'] for curve in found['curves']):.2f}",
            f"{1e3 * statistics.median(found['latency']):.2f}",
        )
        for model, of in details["models"].items()
        for method, found in of.items()
    ]
    seeds = f"{details['seeds']} seed{'s' if details['seeds'] > 1 else ''} of {details['budget_secs']:g} s, no records"
    header = (seeds, "trials", "ms estimated", "ms a run")
    text = "\n\n".join(
        (
            markdown(header, rows),
            "Times less time of the row's method for the last latency of the column's:",
            _matrix({called(m): {called(o): t for o, t in of.items()} for m, of in details["against"].items()}, times),
        )
    )
    text = f"{text}\n\n{sources_text(details['sources'])}"
    if not claims:
        return text
    columns = ("claim", "methods", "in the paper", "here", "by network")
    return f"{text}\n\n{markdown(columns, claims)}"


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
            default=",".join(METHOD_NAMES),
            show_default=True,
            help="Methods with commas between them.",
        ),
        options.count("--seeds", 5, "Seeds of each method on each network."),
        options.seconds("--budget", "budget_secs", 180.0, "Seconds of each run."),
        *sitting_options("bench-out/methods"),
    ),
    short=("--models", "examples/networks.py:small_cnn", "--methods", "fleet,ansor", "--seeds", "1", "--budget", "30"),
    run=run,
    table=table,
    pictures=method_pictures,
)
