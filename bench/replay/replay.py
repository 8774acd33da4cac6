"""Trials that each method needs to find a candidate within 5% of a dataset's best.

Every method runs on the recorded candidates of every task, ``seeds`` times, with the method's own size of a round
(:mod:`bench.replay.replay_runs`); nothing is measured anew. The tables:

- the median trials of each method and task, with the geometric mean over the tasks and its 90% bootstrap interval;
- each effect of the papers switched on and off in ``fleet`` and in ``bansor``;
- all tasks together as one network, with each rule that allocates trials to tasks.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, pick, read
from bench.models.laboratory import method_named
from bench.replay import replay_pool
from bench.replay.columns import (
    OWN,
    WARM,
    all_methods,
    effect_variants,
    is_deep,
    network_variants,
    with_rounds,
    with_warm,
)
from bench.replay.replay_runs import CURVE, TOLERANCE, Replayed, near_best, run_network, run_task
from bench.replay.replay_table import OURS, figures, table
from bench.replay.run_cache import REPLAYED, RunCache, cache_code
from bench.replay.start_models import model_at, refuse_training_data, start_of, started_from
from bench.replay.warm_starts import learned_from, teaching_sets, warm_starts
from bench.result import BenchError, BenchResult
from fleet_tune.base.records.datasets.sources import BUILTIN
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS
from policies.search.methods import Method

PEER = "ansor"


def one_task(chosen: Method, at: int, seed: int, curve_trials: int, start: Path | None) -> Replayed:
    """Make one run, in a process of the pool. ``at``: position of the task in the dataset; ``start``: the file of the
    model that the run starts from, None for none."""
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
    batches: Sequence[int] = (OWN,),
    pretrained: bool = False,
    model: Path | None = None,
    warm: bool = False,
    parts: Path | None = None,
) -> BenchResult:
    """Return trials by method and task, with each effect on and off, and with all tasks together.

    Args:
        dataset: File of the recorded tasks.
        methods: Names of methods, or ``all``.
        tasks: Parts of the names of tasks; all tasks if empty.
        seeds: Runs of each method on each task.
        jobs: Number of processes.
        deep_seeds: Most seeds of a method that trains a neural network; None for no limit.
        effects: Whether to run each effect on and off.
        network_seeds: Runs of all tasks together; 0 for none.
        curve_trials: Least trials of a run with a curve.
        batches: Trials of a round of every method, 0 for each method's own; with several sizes, one column for each.
        pretrained: Each method starts from the model that fleet-tune ships for it. Excludes effects and networks.
        model: File of ``fleet-tune model pretrain`` to start from instead.
        warm: Each method with a cost model has a second column, with a warm start (:mod:`bench.replay.warm_starts`).
        parts: File of cached runs, which are not made again; new runs are added to it. No curves are drawn.

    Raises :class:`BenchError` if fleet-tune ships no model for a method, if the model was trained on the dataset, or
    for options that exclude each other.
    """
    methods = all_methods(methods)
    pretrained = pretrained or model is not None
    refuse_mixtures(effects or bool(network_seeds), pretrained, warm, len(batches))
    without = [name for name in methods if not method_named(name).starts_from]
    if pretrained and without:
        raise BenchError(f"no model comes along for {', '.join(without)}: name others with --method")
    measured = read(dataset)
    named = {name: method_named(name) for name in methods}
    starts = {name: start_of(each.starts_from, model) for name, each in named.items()} if pretrained else {}
    refuse_training_data(dataset, measured, [*starts.values(), *([BUILTIN_PATHS[BUILTIN]] if warm else [])])
    names = labels(measured)
    chosen_tasks = pick(names, tasks)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="bench-replay-") as folder:
        sets = teaching_sets() if warm else ()
        taught = warm_starts(named, sets, Path(folder)) if warm else {}
        columns = with_rounds(with_warm(named, taught), batches)
        starts |= {name: taught[name.partition(WARM)[0]] for name in columns if WARM in name}
        candidates = {path: learned_from(path, sets) for path in set(starts.values())}
        variants = {**columns, **(effect_variants() if effects else {})}
        networks = network_variants() if network_seeds else {}
        if len(batches) == 1:
            variants, networks = with_rounds(variants, batches), with_rounds(networks, batches)
        most = seeds if deep_seeds is None else min(seeds, deep_seeds)
        seeds_of = {name: most if is_deep(chosen) else seeds for name, chosen in variants.items()}
        # Methods without a neural network have curves. Runs of the others end when they arrive.
        drawn = set() if parts else {name for name in columns if not is_deep(variants[name])}
        curves = {name: curve_trials if name in drawn else 0 for name in variants}
        runs, totals = play(
            dataset, chosen_tasks, variants, seeds_of, jobs, curves, networks, network_seeds, parts, starts
        )
    details = figures(runs, totals, [names[at] for at in chosen_tasks], chosen_tasks, drawn)
    details |= {
        "methods": list(columns),
        "batch": {name: variants[name].batch for name in columns},
        "seeds": {name: seeds_of[name] for name in columns},
        "network_seeds": network_seeds,
        "pretrained": pretrained,
        "starts": {name: path.stem for name, path in starts.items()},
        "learned_from": {name: candidates[path] for name, path in starts.items()},
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
    ours = trials[OURS if OURS in columns else next(iter(columns))]
    peer = trials[PEER] if PEER in columns and len(columns) > 1 else None
    return BenchResult("replay", ours, peer, peer / ours if peer is not None else None, "trials", details)


def refuse_mixtures(together: bool, pretrained: bool, warm: bool, sizes: int) -> None:
    """Raise :class:`BenchError` for options that exclude each other. ``together``: whether effects or runs of all tasks
    together are asked for; ``sizes``: number of sizes of a round."""
    alone = {"--pretrained": pretrained, "--warm": warm, "several --batch": sizes > 1}
    given = [option for option, chosen in alone.items() if chosen]
    if together and given:
        raise BenchError(f"{given[0]} is of single tasks alone: add --no-effects --network-seeds 0")
    if pretrained and warm:
        raise BenchError("--warm has columns from nothing too: leave out --pretrained and --model")


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
    """Return the runs of each variant on each task by (variant, task), and the trials of all tasks together by variant,
    both in the order of the seeds.

    Args:
        dataset: File of the recorded tasks.
        tasks: Positions of the tasks in the dataset.
        variants: Methods by name.
        seeds: Number of seeds of each variant.
        jobs: Number of processes.
        curves: Least trials of each variant's runs; 0 for a variant that is not in it.
        networks: Methods by name that run all tasks together.
        network_seeds: Number of seeds of each of ``networks``.
        parts: File of cached runs, see :func:`run`.
        starts: File of the model that each variant starts from; none for a variant that is not in it.
    """
    code, names = cache_code(parts, __name__), labels(read(dataset))
    kinds = {name: started_from([starts[name]]) if starts and name in starts else REPLAYED for name in variants}
    kept = {name: RunCache(parts, dataset, kind, code) for name, kind in kinds.items()}
    runs: dict[tuple[str, int, int], Replayed] = {}
    totals: dict[tuple[str, int], int] = {}
    with replay_pool.replaying(dataset, jobs) as pool:
        waiting: dict[Future[Any], Callable[[Any], None]] = {}
        for name, chosen in (networks or {}).items():  # the longest runs first
            for seed in range(network_seeds):
                total: Future[Any] = replay_pool.submit(pool, _one_network, chosen, tuple(tasks), seed)
                waiting[total] = partial(totals.__setitem__, (name, seed))
        # Slow runs first, so that the other processes do not wait for one at the end.
        for name, chosen in sorted(variants.items(), key=lambda variant: not is_deep(variant[1])):
            for seed in range(seeds[name]):
                for at in tasks:
                    known = kept[name].find(chosen, names[at], seed)
                    if known is not None:
                        runs[name, at, seed] = known
                        continue

                    def keep(run: Replayed, name: str = name, at: int = at, seed: int = seed) -> None:
                        runs[name, at, seed] = run
                        kept[name].add(variants[name], names[at], seed, run)

                    future = replay_pool.submit(
                        pool, one_task, chosen, at, seed, (curves or {}).get(name, 0), (starts or {}).get(name)
                    )
                    waiting[future] = keep
        replay_pool.collect(waiting)
    return (
        {(name, at): [runs[name, at, seed] for seed in range(seeds[name])] for name in variants for at in tasks},
        {name: [totals[name, seed] for seed in range(network_seeds)] for name in (networks or {})},
    )


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
            ["--batch", "batches"],
            multiple=True,
            type=click.IntRange(min=OWN),
            default=[OWN],
            help="Trials of a round of every method; 0, which is also the default: each its own. Of several, columns.",
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
        click.Option(
            ["--warm"],
            is_flag=True,
            help="A second column of each method that can start from other tasks, --no-effects --network-seeds 0.",
        ),
        options.run_cache(),
        options.jobs(),
    ),
    short=("--method", "all", "--seeds", "3", "--no-effects", "--network-seeds", "0"),
    run=run,
    table=table,
)
