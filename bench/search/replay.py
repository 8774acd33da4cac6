"""Measured trials that each method needs until it has found a candidate within 5% of a dataset's best.

Every method runs on the recorded candidates of every task, ``seeds`` times, with the rounds of its method
(:mod:`bench.search.replay_runs`); nothing is measured anew. The tables: median trials of each method and task with the
geometric mean over the tasks; each effect of the papers switched on and off in ``fleet`` and in ``bansor``; and all
tasks together as one network, with each rule that gives trials to tasks.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, pick, read
from bench.models.laboratory import method_named
from bench.result import BenchError, BenchResult
from bench.search import replay_pool
from bench.search.replay_runs import (
    CURVE,
    EFFECTS,
    TOLERANCE,
    Replayed,
    has_effect,
    near_best,
    overall,
    quartiles,
    run_network,
    run_task,
    task_policies,
    with_effect,
)
from bench.search.run_cache import REPLAYED, RunCache, cache_code
from bench.search.start_models import model_at, refuse_training_data, start_of, started_from
from bench.tables import markdown
from policies.search.methods import METHOD_NAMES, Method

OURS, PEER = "fleet", "ansor"
BASES = ("fleet", "bansor")
"""Methods in which each effect is switched."""


def one_task(chosen: Method, at: int, seed: int, curve_trials: int, start: Path | None) -> Replayed:
    """One run in a process of the pool; ``start``: the file of the model that it starts from, None for nothing."""
    prior = model_at(start) if start is not None else None
    return run_task(replay_pool.tasks[at], chosen, seed, curve_trials, prior)


def _one_network(chosen: Method, chosen_tasks: tuple[int, ...], seed: int) -> int:
    return run_network([replay_pool.tasks[at] for at in chosen_tasks], chosen, seed)


def run(
    dataset: Path,
    methods: Sequence[str],
    tasks: Sequence[str],
    seeds: int,
    jobs: int,
    *,
    deep_seeds: int | None = None,
    effects: bool = True,
    network_seeds: int = 0,
    curve_trials: int = CURVE[-1],
    batch: int | None = None,
    pretrained: bool = False,
    model: Path | None = None,
    parts: Path | None = None,
) -> BenchResult:
    """Tables of trials by method and task, of each effect on and off, and of all tasks together.

    Args:
        tasks: Parts of the names of tasks; all if there is none.
        deep_seeds: Most seeds of a method that trains a neural network; None for all.
        network_seeds: Runs of all tasks together; 0 for none.
        curve_trials: Trials that a run goes on for at least, for its curve.
        batch: Trials of a round of every method; None for each method's own.
        pretrained: Each method starts from the model that comes with fleet-tune: without effects and networks.
        model: File of ``fleet-tune model pretrain`` to start from in its place.
        parts: File of runs that need not be made again, to which new runs are added; no curves are drawn.

    Raises :class:`BenchError` if a method has no such model, or the model was trained on the dataset.
    """
    methods = all_methods(methods)
    pretrained = pretrained or model is not None
    if pretrained and (effects or network_seeds):
        raise BenchError("--pretrained is of single tasks alone: add --no-effects --network-seeds 0")
    without = [name for name in methods if not method_named(name).starts_from]
    if pretrained and without:
        raise BenchError(f"no model comes along for {', '.join(without)}: name others with --method")
    measured = read(dataset)
    starts = {name: start_of(method_named(name).starts_from, model) for name in methods} if pretrained else {}
    refuse_training_data(dataset, measured, starts.values())
    names = labels(measured)
    chosen_tasks = pick(names, tasks)
    variants = {name: method_named(name) for name in methods}
    if effects:
        variants.update(effect_variants())
    networks = network_variants() if network_seeds else {}
    if batch is not None:
        variants = {name: dataclasses.replace(each, batch=batch) for name, each in variants.items()}
        networks = {name: dataclasses.replace(each, batch=batch) for name, each in networks.items()}
    most = seeds if deep_seeds is None else min(seeds, deep_seeds)
    seeds_of = {name: most if is_deep(chosen) else seeds for name, chosen in variants.items()}
    began = time.perf_counter()
    # Curves are drawn of the methods that train no network; the others end where they arrive.
    drawn = set() if parts else {name for name in methods if not is_deep(variants[name])}
    curves = {name: curve_trials if name in drawn else 0 for name in variants}
    runs, totals = play(dataset, chosen_tasks, variants, seeds_of, jobs, curves, networks, network_seeds, parts, starts)
    details = figures(runs, totals, [names[at] for at in chosen_tasks], chosen_tasks)
    details |= {
        "methods": list(methods),
        "batch": {name: variants[name].batch for name in methods},
        "seeds": {name: seeds_of[name] for name in methods},
        "network_seeds": network_seeds,
        "pretrained": pretrained,
        "tolerance": TOLERANCE,
        "elapsed_secs": time.perf_counter() - began,
        "jobs": jobs,
        "dataset": {
            "file": dataset.name,
            "candidates": {names[at]: len(measured[at]) for at in chosen_tasks},
            "near_best": {names[at]: near_best(measured[at]) for at in chosen_tasks},
        },
    }
    trials = details["overall"]
    ours = trials[OURS if OURS in methods else methods[0]]
    peer = trials[PEER] if PEER in methods and len(methods) > 1 else None
    return BenchResult("replay", ours, peer, peer / ours if peer is not None else None, "trials", details)


def play(
    dataset: Path,
    tasks: Sequence[int],
    variants: Mapping[str, Method],
    seeds: Mapping[str, int],
    jobs: int,
    curves: Mapping[str, int] | None = None,
    networks: Mapping[str, Method] | None = None,
    network_seeds: int = 0,
    parts: Path | None = None,
    starts: Mapping[str, Path] | None = None,
) -> tuple[dict[tuple[str, int], list[Replayed]], dict[str, list[int]]]:
    """Runs of each variant on each task by (variant, task), and trials of all tasks together by variant, both in the
    order of the seeds. ``curves``: trials that a variant goes on for at least (0 of those it lacks). ``parts``: a file
    of runs that are not made again. ``starts``: the file of the model from which each variant starts."""
    kind = started_from(starts.values()) if starts else REPLAYED
    kept, names = RunCache(parts, dataset, kind, cache_code(parts, __name__)), labels(read(dataset))
    runs: dict[tuple[str, int, int], Replayed] = {}
    totals: dict[tuple[str, int], int] = {}
    with replay_pool.replaying(dataset, jobs) as pool:
        waiting: dict[Future[Any], Callable[[Any], None]] = {}
        for name, chosen in (networks or {}).items():  # the longest ones first
            for seed in range(network_seeds):
                total: Future[Any] = replay_pool.submit(pool, _one_network, chosen, tuple(tasks), seed)
                waiting[total] = partial(totals.__setitem__, (name, seed))
        # The slow ones first, so that no process is alone with one at the end.
        for name, chosen in sorted(variants.items(), key=lambda variant: not is_deep(variant[1])):
            for seed in range(seeds[name]):
                for at in tasks:
                    known = kept.find(chosen, names[at], seed)
                    if known is not None:
                        runs[name, at, seed] = known
                        continue

                    def keep(run: Replayed, name: str = name, at: int = at, seed: int = seed) -> None:
                        runs[name, at, seed] = run
                        kept.add(variants[name], names[at], seed, run)

                    future = replay_pool.submit(
                        pool, one_task, chosen, at, seed, (curves or {}).get(name, 0), (starts or {}).get(name)
                    )
                    waiting[future] = keep
        replay_pool.collect(waiting)
    return (
        {(name, at): [runs[name, at, seed] for seed in range(seeds[name])] for name in variants for at in tasks},
        {name: [totals[name, seed] for seed in range(network_seeds)] for name in (networks or {})},
    )


def effect_variants() -> dict[str, Method]:
    """Each base with each effect switched: off where it has it, on where not (``fleet - ei``, ``bansor + ei``)."""
    variants = {}
    for base in map(method_named, BASES):
        variants[base.name] = base
        for effect in EFFECTS:
            on = has_effect(base, effect)
            variants[f"{base.name} {'-' if on else '+'} {effect}"] = with_effect(base, effect, not on)
    return variants


def network_variants() -> dict[str, Method]:
    """Each base with each rule that gives trials to tasks."""
    return {
        f"{base.name}, {tasks.name}": dataclasses.replace(base, tasks=tasks)
        for base in map(method_named, BASES)
        for tasks in task_policies(base)
    }


def figures(
    runs: Mapping[tuple[str, int], Sequence[Replayed]],
    totals: Mapping[str, Sequence[int]],
    names: Sequence[str],
    tasks: Sequence[int],
) -> dict[str, Any]:
    """Quartiles of trials by method and task, geometric means and sums of the medians, quartiles of the seeds' own sums
    (``seed_sum``), curves, and the network's trials. ``uninformed``: the sum over the tasks of the median trials that
    were drawn at random before anything was known.

    ``runs`` by (method or variant, task); ``tasks`` with their ``names``. ``curves``: for every number of trials of
    :data:`CURVE` the geometric mean over the tasks of the median best so far, as a share of the best possible speed;
    not of methods with a neural network, whose runs end where they arrive, nor of runs that were kept without.
    """
    methods = list(dict.fromkeys(name for name, _ in runs))
    trials = {
        method: {
            name: quartiles([each.trials for each in runs[method, at]]) for name, at in zip(names, tasks, strict=True)
        }
        for method in methods
    }
    return {
        "trials": trials,
        "overall": {method: overall({k: v["median"] for k, v in by.items()}) for method, by in trials.items()},
        "sum": {method: sum(each["median"] for each in by.values()) for method, by in trials.items()},
        "seed_sum": {
            method: quartiles(
                [
                    float(sum(run.trials for run in seed))
                    for seed in zip(*(runs[method, at] for at in tasks), strict=True)
                ]
            )
            for method in methods
        },
        "uninformed": {
            method: sum(float(np.median([each.uninformed for each in runs[method, at]])) for at in tasks)
            for method in methods
        },
        "overall_trial_secs": {
            method: overall({str(at): float(np.median([r.trial_secs for r in runs[method, at]])) for at in tasks})
            for method in methods
        },
        "curve_trials": list(CURVE),
        "curves": {
            method: [
                # A share of 0 (nothing ran yet) has no logarithm: it stands as a thousandth.
                overall({str(at): max(float(np.median([r.curve[i] for r in runs[method, at]])), 1e-3) for at in tasks})
                for i in range(len(CURVE))
            ]
            for method in methods
            if " " not in method
            and not is_deep(method_named(method))
            and all(run.curve for at in tasks for run in runs[method, at])
        },
        "network": {name: quartiles([float(each) for each in values]) for name, values in totals.items()},
    }


def all_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """The methods that ``--method`` names: some of them, or ``all``."""
    return METHOD_NAMES if "all" in methods else tuple(methods)


def is_deep(chosen: Method) -> bool:
    """Return true if the method trains a neural network, so that a run of hundreds of trials takes minutes."""
    return chosen.training is not None and chosen.training.learns_on


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    ranked = sorted(details["methods"], key=lambda method: details["overall"][method])
    rows = [
        (f"`{task}` ({near})", *(_quartiles(details["trials"][method][task]) for method in ranked))
        for task, near in details["dataset"]["near_best"].items()
    ]
    rows.append(("overall, geometric mean", *(_trials(details["overall"][method]) for method in ranked)))
    most = max(details["seeds"].values())
    rows.append(("sum over the tasks", *(_trials(details["sum"][method]) for method in ranked)))
    rows.append(("sum of each seed", *(_quartiles(details["seed_sum"][method]) for method in ranked)))
    rows.append(
        ("of these at random before any record", *(_trials(details["uninformed"][method]) for method in ranked))
    )
    secs = details["overall_trial_secs"]
    rows.append(("seconds to build and measure them, geometric mean", *(f"{secs[method]:.3g}" for method in ranked)))
    rows.append(("trials of a round", *(f"{details['batch'][method]}" for method in ranked)))
    columns = [f"`{method}`" + _of_seeds(details["seeds"][method], most) for method in ranked]
    if details["pretrained"]:
        columns = [f"{column}, pretrained" for column in columns]
    parts = [markdown(("trials to within 5% of the best (candidates there)", *columns), rows)]
    variants = [name for name in details["trials"] if " " in name]
    if variants:
        bases = list(dict.fromkeys(name.split()[0] for name in variants))
        effects = list(dict.fromkeys(name.split()[-1] for name in variants))
        switches: list[tuple[str, ...]] = []
        for effect in effects:
            cells: list[str] = []
            for base in bases:
                switched = next(name for name in variants if name.split()[0] == base and name.split()[-1] == effect)
                with_it, without = (base, switched) if " - " in switched else (switched, base)
                cells += [_trials(details["overall"][with_it]), _trials(details["overall"][without])]
            switches.append((effect, *cells))
        columns = [f"`{base}` {state}" for base in bases for state in ("with", "without")]
        parts.append(markdown(("overall trials, effect on and off", *columns), switches))
    if details["network"]:
        together = [(name, _quartiles(figures)) for name, figures in details["network"].items()]
        parts.append(markdown(("all tasks together", "trials to within 5% of the best sum"), together))
    return "\n\n".join(parts)


def _of_seeds(seeds: int, most: int) -> str:
    """Said of a column that has fewer seeds than the others."""
    return "" if seeds == most else f", {seeds} seeds"


def _trials(count: float) -> str:
    """A mean number of trials; below ten its first decimal tells methods apart."""
    return f"{count:.0f}" if count >= 10 else f"{count:.1f}"


def _quartiles(figures: Mapping[str, float]) -> str:
    """``median (lower quartile to upper)``."""
    return f"{figures['median']:.0f} ({figures['q1']:.0f} to {figures['q3']:.0f})"


BENCHMARK = Benchmark(
    name="replay",
    help="Measured trials until a candidate within 5% of the dataset's best is found.",
    options=(
        options.dataset(),
        click.Option(
            ["--method", "methods"],
            multiple=True,
            default=["all"],
            show_default=True,
            help="A method of fleet-tune, or all.",
        ),
        options.tasks("all tasks"),
        options.count("--seeds", 20),
        options.count(
            "--deep-seeds", 3, "Seeds at most of methods with a neural network: a run of theirs takes minutes."
        ),
        click.Option(
            ["--effects/--no-effects"], default=True, show_default=True, help="Each paper's effect on and off."
        ),
        options.count("--network-seeds", 5, "Runs of all tasks.", least=0),
        click.Option(
            ["--batch"], type=click.IntRange(min=1), help="Trials of a round of every method; else each its own."
        ),
        click.Option(
            ["--pretrained"],
            is_flag=True,
            help="Start from the model that comes along, with methods that have one, --no-effects --network-seeds 0.",
        ),
        click.Option(
            ["--model"],
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Start from this file of 'fleet-tune model pretrain' in its place.",
        ),
        options.run_cache(),
        options.jobs(),
    ),
    short=("--method", "all", "--seeds", "3", "--no-effects", "--network-seeds", "0"),
    run=run,
    table=table,
)
