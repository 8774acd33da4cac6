"""The papers' ablations and one of ours, by replay: each effect of a method on and off, everything else unchanged.

The trials of a run are those until a measured candidate is within 5% of the dataset's best. Each variant has these
figures: the median and the quartiles over the seeds of the trials summed over the tasks; the geometric mean of the
tasks' medians; and the ratio of the medians to those of the paper's own method, with the interval of a bootstrap over
the tasks.

The variants of ``moa-pruner`` start from the model that comes with fleet-tune, so they need a dataset that this model
was not trained on. All other variants start from nothing. The other comparisons of the papers are separate benchmarks:
docs/papers.md has the command of each figure.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, pick, read
from bench.models.laboratory import ConfidenceBound, method_named
from bench.replay import replay_pool
from bench.replay.columns import is_deep
from bench.replay.replay_pool import Call, played
from bench.replay.replay_runs import Replayed, run_task
from bench.replay.run_cache import REPLAYED, RunCache, cache_code
from bench.replay.start_models import model_at, refuse_training_data, start_of
from bench.result import BenchError, BenchResult
from bench.search.ablations_table import DOUBLED, figures, table
from bench.search.genetic import genetic_method
from policies.cost_models.registry import BOOSTED
from policies.search.acquisition import ExpectedImprovement, PredictedMean
from policies.search.allocation import UcbSketches
from policies.search.exploration import FixedEpsilon
from policies.search.generators import DraftGenerator, GeneticGenerator, LatentGenerator
from policies.search.methods import Method

PRETRAINED = "moa-pruner"
"""Name of the paper whose variants start from the model that their method names (``starts_from``)."""

_EVERY = 4
"""Rounds from one training to the next in the code of MoA-Pruner. The paper says only that it trains less often."""
TRAIN_EVERY = {f"trained in every {_EVERY}th round (section 6.3)": _EVERY}
"""Rounds from one training of the model to the next, by variant. All other variants train after each round."""


def ablations() -> dict[str, dict[str, Method]]:
    """Return the variants by paper (``fleet`` is ours), the published method first. The name of a variant says what is
    different, and where the paper shows it."""
    autotvm, adatune, ansor, pruner, moa, fleet = (
        method_named(name) for name in ("autotvm", "adatune", "ansor", "pruner", PRETRAINED, "fleet")
    )
    ours, draft, process = fleet.sketches, fleet.generator, fleet.training
    assert isinstance(ours, UcbSketches)
    assert isinstance(draft, DraftGenerator)
    assert process is not None
    trees = replace(process, model=BOOSTED, alone=False)
    regression = method_named("autotvm:boosted-loops")
    assert isinstance(pruner.generator, LatentGenerator)
    genetic = GeneticGenerator(pruner.generator.settings)
    offline = replace(method_named("pruner:offline"), starts_from=moa.starts_from)
    return {
        "autotvm": {
            "as published": autotvm,
            "random (figure 4)": method_named("random"),
            f"random{DOUBLED} (figure 4)": replace(method_named("random"), batch=2 * autotvm.batch),
            "genetic, without a model (figure 4)": genetic_method(),
            f"genetic{DOUBLED}, without a model (figure 4)": replace(genetic_method(), batch=2 * autotvm.batch),
            "TreeGRU (figures 4, 5)": method_named("autotvm:tree-gru"),
            "TreeGRU, regression (figure 5)": method_named("autotvm:tree-gru-regression"),
            "regression (figure 5)": regression,
            "lambda 1 (figure 6)": replace(autotvm, selection=replace(autotvm.selection, top_factor=1.0)),
            "lambda 4 (figure 6)": replace(autotvm, selection=replace(autotvm.selection, top_factor=4.0)),
            "regression, expected improvement (figure 7)": replace(regression, acquisition=ExpectedImprovement()),
            "regression, confidence bound (figure 7)": replace(regression, acquisition=ConfidenceBound()),
            **{
                f"{what} alone (figure 9a)": method_named(f"autotvm:boosted-{model}")
                for what, model in (
                    ("configurations", "knobs"),
                    ("loop contexts", "context"),
                    ("context relations", "relation"),
                )
            },
            "our features": method_named("autotvm:boosted-rank"),
        },
        "adatune": {
            "as published": adatune,
            "the prediction instead of expected improvement": replace(adatune, acquisition=PredictedMean()),
            **{
                f"epsilon {epsilon} instead of contextual (figure 4)": replace(
                    adatune, exploration=FixedEpsilon(epsilon)
                )
                for epsilon in (0.01, 0.05, 0.2, 0.5)
            },
            "the jackknife's deviation instead of the trees' spread": method_named("adatune:forest-jackknife"),
            "our features": method_named("adatune:forest"),
        },
        "bansor": {
            "as published": method_named("bansor"),
            "without the bandit over sketches: Ansor": ansor,
            **{
                f"C = {constant} over the sketches (section V)": replace(
                    method_named("bansor"), sketches=UcbSketches(exploration_constant=constant)
                )
                for constant in (0.1, 0.5, 1.0)
            },
            "rounds of 16 (figure 4)": replace(method_named("bansor"), batch=16),
            "rounds of 16, Ansor (figure 4)": replace(ansor, batch=16),
            "our features": method_named("bansor:boosted"),
        },
        "pruner": {
            "as published": pruner,
            "without LSE (table 12)": replace(pruner, generator=genetic),
            "without statement features (table 12)": method_named("pruner:pacm-dataflow"),
            "without dataflow features (table 12)": method_named("pruner:mlp"),
            "equation 1 (ours is the analyzer)": method_named("pruner:equation-1"),
            "no random candidates verified": replace(pruner, generator=replace(pruner.generator, initial=0)),
            "our features": method_named("pruner:pacm-analyzer"),
        },
        PRETRAINED: {
            "as published": moa,
            "without LSE (table 12)": replace(moa, generator=genetic),
            "without MoA, from nothing (table 12)": pruner,
            "fine-tuned online instead (table 12)": replace(pruner, starts_from=moa.starts_from),
            **dict.fromkeys(TRAIN_EVERY, moa),
            "offline (table 13)": offline,
            "offline, without LSE (table 13)": replace(offline, generator=genetic),
        },
        "fleet": {
            "as it is": fleet,
            "AdaTune's contextual epsilon": replace(fleet, exploration=adatune.exploration),
            "trees instead of a Gaussian process": replace(fleet, training=trees),
            "the mean of it and the calibrated analyzer": replace(fleet, training=replace(process, alone=False)),
            "each sketch tried once before the bound chooses": replace(fleet, sketches=replace(ours, prior_visits=0.0)),
            "C = 0.3 over the sketches": replace(fleet, sketches=replace(ours, exploration_constant=0.3)),
            **{
                f"epsilon {epsilon} instead": replace(fleet, exploration=FixedEpsilon(epsilon))
                for epsilon in (0.1, 0.2)
            },
            **{
                f"contested {share} instead": replace(fleet, selection=replace(fleet.selection, contested=share))
                for share in (0.0, 0.25, 1.0)
            },
        },
    }


def run(
    dataset: Path,
    papers: Sequence[str],
    tasks: Sequence[str],
    seeds: int,
    deep_seeds: int,
    jobs: int,
    parts: Path | None = None,
    wanted: Sequence[str] = (),
) -> BenchResult:
    """Return the lines of :func:`figures` for each of ``papers``. ``ours``: the median sum of the first variant.

    ``deep_seeds``: most seeds of a variant with a neural network; ``parts``: a file that caches runs; ``wanted``: parts
    of the names of variants, empty for all. Raises :class:`BenchError` if no variant has a wanted part.
    """
    measured = read(dataset)
    names = labels(measured)
    chosen = pick(names, tasks)
    began = time.perf_counter()
    keys = chosen_variants(papers, wanted)
    of = {name: min(seeds, deep_seeds) if is_deep(method) else seeds for name, method in keys.items()}
    starts = {f"{PRETRAINED}: {name}": method.starts_from for name, method in ablations()[PRETRAINED].items()}
    if PRETRAINED in papers:
        refuse_training_data(dataset, measured, (start_of(name, None) for name in starts.values() if name))

    def call(name: str, at: int, seed: int) -> Call[Replayed]:
        start = starts.get(name, "")
        task = f"{names[at]}, from {start}" if start else names[at]
        every = train_every(name)
        return Call(keys[name], noted(task, every), seed, _one, (keys[name], at, seed, start, every))

    calls = {
        (name, at, seed): call(name, at, seed)
        for seed in range(max(of.values()))
        for name in keys
        if seed < of[name]
        for at in chosen
    }
    made = played(dataset, jobs, RunCache(parts, dataset, REPLAYED, cache_code(parts, __name__)), calls)
    runs = {(name, at): [made[name, at, seed] for seed in range(of[name])] for name in keys for at in chosen}
    lines = figures(runs, list(keys), chosen)
    details = {
        "papers": list(papers),
        "tasks": [names[at] for at in chosen],
        "seeds": of,
        "lines": lines,
        "dataset": dataset.name,
        "elapsed_secs": time.perf_counter() - began,
    }
    first = next(iter(lines.values()))["sum"]["median"]
    return BenchResult("ablations", first, None, None, "trials", details)


def chosen_variants(papers: Sequence[str], wanted: Sequence[str]) -> dict[str, Method]:
    """Return by ``PAPER: VARIANT`` the variants of these papers whose name contains one of ``wanted``; all if it is
    empty. Raises :class:`BenchError` for a part that no name contains."""
    every = {
        f"{paper}: {name}": method
        for paper, variants in ablations().items()
        if paper in papers
        for name, method in variants.items()
    }
    unknown = [part for part in wanted if not any(part in name for name in every)]
    if unknown:
        raise BenchError(f"no variant is called {unknown[0]!r}: {', '.join(every)}")
    return {name: method for name, method in every.items() if not wanted or any(part in name for part in wanted)}


def train_every(name: str) -> int:
    """Return the rounds from one training to the next of a variant; its name may begin with that of its paper."""
    return next((rounds for variant, rounds in TRAIN_EVERY.items() if name.endswith(variant)), 1)


def noted(task: str, every: int) -> str:
    """Return the name of a task in the key of a cached run. It has the frequency of training, which is not part of the
    method."""
    return task if every == 1 else f"{task}, trained in every {every} rounds"


def _one(method: Method, at: int, seed: int, start: str, every: int) -> Replayed:
    prior = model_at(start_of(start, None)) if start else None
    return run_task(replay_pool.tasks[at], method, seed, 0, prior, every)


PAPERS = ("autotvm", "adatune", "bansor", "pruner", PRETRAINED, "fleet")

FROM_NOTHING = tuple(paper for paper in PAPERS if paper != PRETRAINED)

BENCHMARK = Benchmark(
    name="ablations",
    help="Each effect of the papers' methods on and off, by replay.",
    options=(
        options.dataset(),
        click.Option(
            ["--paper", "papers"],
            multiple=True,
            type=click.Choice(PAPERS),
            default=FROM_NOTHING,
            help="Whose; else all that start from nothing.",
        ),
        click.Option(["--variant", "wanted"], multiple=True, help="Part of a variant's name; else all."),
        options.tasks("all tasks"),
        options.count("--seeds", 10),
        options.count("--deep-seeds", 3, "Seeds at most of variants with a neural network."),
        options.run_cache(),
        options.jobs(),
    ),
    short=("--paper", "bansor", "--seeds", "3"),
    run=run,
    table=table,
)
