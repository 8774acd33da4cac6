"""The papers' ablations and one of ours, by replay: each effect of a method on and off, everything else as it is.

A variant's figure is the sum over the tasks of the measured trials until a candidate within 5% of the dataset's best,
of each seed; a line has its median with the quartiles of the seeds, and the geometric mean of the tasks' medians.
What needs a device (AdaTune's figures 10 and 11: its evaluator) is no replay: ``--method adatune:deterministic`` and
``adatune:adaptive`` are the two sides of it in a run. What needs other records (AutoTVM's figures 8 and 9) is
``bench transfer``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.measured import labels, pick, read
from bench.result import BenchResult
from bench.search.replay import is_deep, play
from bench.search.replay_runs import Replayed, overall, quartiles
from bench.tables import markdown
from policies.search.acquisition import ConfidenceBound, ExpectedImprovement, PredictedMean
from policies.search.allocation import UcbSketches
from policies.search.exploration import Exploration, FixedEpsilon
from policies.search.generators import GeneticGenerator, LatentGenerator
from policies.search.methods import Method, method_named


def ablations() -> dict[str, dict[str, Method]]:
    """Variants by paper, its own method first (``fleet`` is ours); a name says what is different, and where the paper
    shows it."""
    autotvm, adatune, ansor, pruner, fleet = (
        method_named(name) for name in ("autotvm", "adatune", "ansor", "pruner", "fleet")
    )
    regression = method_named("autotvm:boosted-loops")
    assert isinstance(pruner.generator, LatentGenerator)
    return {
        "autotvm": {
            "as published": autotvm,
            "random (figure 4)": method_named("random"),
            "TreeGRU (figures 4, 5)": method_named("autotvm:tree-gru"),
            "regression (figure 5)": regression,
            "lambda 1 (figure 6)": replace(autotvm, selection=replace(autotvm.selection, top_factor=1.0)),
            "lambda 4 (figure 6)": replace(autotvm, selection=replace(autotvm.selection, top_factor=4.0)),
            "regression, expected improvement (figure 7)": replace(regression, acquisition=ExpectedImprovement()),
            "regression, confidence bound (figure 7)": replace(regression, acquisition=ConfidenceBound()),
            "our features": method_named("autotvm:boosted-rank"),
        },
        "adatune": {
            "as published": adatune,
            "the prediction instead of expected improvement": replace(adatune, acquisition=PredictedMean()),
            "epsilon 0.05 instead of contextual (figure 4)": replace(
                adatune, exploration=Exploration(FixedEpsilon(0.05))
            ),
            "our features": method_named("adatune:forest"),
        },
        "bansor": {
            "as published": method_named("bansor"),
            "without the bandit over sketches: Ansor": ansor,
            "rounds of 16 (figure 4)": replace(method_named("bansor"), batch=16),
            "rounds of 16, Ansor (figure 4)": replace(ansor, batch=16),
            "our features": method_named("bansor:boosted"),
        },
        "pruner": {
            "as published": pruner,
            "without LSE (table 12)": replace(pruner, generator=GeneticGenerator(pruner.generator.settings)),
            "without dataflow features (table 12)": method_named("pruner:mlp"),
            "equation 1 on CPUs": method_named("pruner:equation-1"),
            "no random candidates verified": replace(pruner, generator=replace(pruner.generator, initial=0)),
            "our features": method_named("pruner:pacm-analyzer"),
        },
        "fleet": {
            "as it is: contextual epsilon, 0.02 to 0.2; a quarter contested": fleet,
            **{
                f"epsilon {epsilon} instead": replace(fleet, exploration=replace(fleet.exploration, epsilon=fixed))
                for epsilon in (0.0, 0.02, 0.05)
                for fixed in (FixedEpsilon(epsilon),)
            },
            **{
                f"contested {share} instead": replace(fleet, selection=replace(fleet.selection, contested=share))
                for share in (0.0, 0.5)
            },
        },
    }


def networks() -> dict[str, Method]:
    """Bansor's table III: all tasks as one network, with neither bandit, the one over sketches, and both."""
    ansor, bansor = method_named("ansor"), method_named("bansor")
    return {
        "Ansor": ansor,
        "Bansor1: over sketches": replace(ansor, sketches=UcbSketches()),
        "Bansor2: over sketches and tasks": bansor,
    }


def run(
    dataset: Path,
    papers: Sequence[str],
    tasks: Sequence[str],
    seeds: int,
    deep_seeds: int,
    network_seeds: int,
    jobs: int,
    parts: Path | None = None,
) -> BenchResult:
    """The lines of :func:`figures` for each paper. ``network_seeds``: runs of all tasks together (Bansor alone), 0 for
    none; ``parts``: a file of runs that need not be made again."""
    measured = read(dataset)
    names = labels(measured)
    chosen = pick(names, tasks)
    began = time.perf_counter()
    every = {
        (paper, name): method
        for paper, variants in ablations().items()
        if paper in papers
        for name, method in variants.items()
    }
    keys = {f"{paper}: {name}": method for (paper, name), method in every.items()}
    of = {name: min(seeds, deep_seeds) if is_deep(method) else seeds for name, method in keys.items()}
    together = networks() if "bansor" in papers and network_seeds else {}
    runs, totals = play(dataset, chosen, keys, of, jobs, None, together, network_seeds, parts)
    lines = figures(runs, list(keys), chosen)
    details = {
        "papers": list(papers),
        "tasks": [names[at] for at in chosen],
        "seeds": of,
        "lines": lines,
        "network": {name: quartiles([float(each) for each in values]) for name, values in totals.items()},
        "dataset": dataset.name,
        "elapsed_secs": time.perf_counter() - began,
    }
    first = next(iter(lines.values()))["sum"]["median"]
    return BenchResult("ablations", first, None, None, "trials", details)


def figures(
    runs: Mapping[tuple[str, int], Sequence[Replayed]], variants: Sequence[str], tasks: Sequence[int]
) -> dict[str, Any]:
    """Of each variant: quartiles over the seeds of the sum over the tasks, and the geometric mean of the medians."""
    lines = {}
    for name in variants:
        sums = [
            float(sum(each.trials for each in seed)) for seed in zip(*(runs[name, at] for at in tasks), strict=True)
        ]
        medians = {str(at): quartiles([float(each.trials) for each in runs[name, at]])["median"] for at in tasks}
        lines[name] = {"sum": quartiles(sums), "overall": overall(medians)}
    return lines


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    rows = [
        (
            name,
            f"{line['sum']['median']:.0f} ({line['sum']['q1']:.0f} to {line['sum']['q3']:.0f})",
            f"{line['overall']:.1f}",
            f"{details['seeds'][name]}",
        )
        for name, line in details["lines"].items()
    ]
    head = (f"trials to within 5%, {len(details['tasks'])} tasks", "sum over the tasks", "geometric mean", "seeds")
    parts = [markdown(head, rows)]
    if details["network"]:
        parts.append(
            markdown(
                ("all tasks together", "trials to within 5% of the best sum"),
                [
                    (name, f"{each['median']:.0f} ({each['q1']:.0f} to {each['q3']:.0f})")
                    for name, each in details["network"].items()
                ],
            )
        )
    return "\n\n".join(parts)


PAPERS = ("autotvm", "adatune", "bansor", "pruner", "fleet")

BENCHMARK = Benchmark(
    name="ablations",
    help="Each effect of the papers' methods on and off, by replay.",
    options=(
        options.dataset(),
        click.Option(
            ["--paper", "papers"], multiple=True, type=click.Choice(PAPERS), default=PAPERS, help="Whose; else all."
        ),
        options.tasks("all tasks"),
        options.count("--seeds", 10),
        options.count("--deep-seeds", 3, "Seeds at most of variants with a neural network."),
        options.count("--network-seeds", 5, "Runs of all tasks together, of Bansor's.", least=0),
        options.kept_runs(),
        options.jobs(),
    ),
    short=("--paper", "bansor", "--seeds", "3", "--network-seeds", "1"),
    run=run,
    table=table,
)
