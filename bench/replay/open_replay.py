"""Trials that each method needs in the open space of a task to find a candidate within 5% of the best measured one.

This is the counterpart of :mod:`bench.replay.replay`, whose searches are confined to the recorded candidates. Here a
method may propose any candidate of the sketches' spaces, as in a tuning run. A model of the records imputes the cost of
a candidate that the dataset lacks (:mod:`bench.replay.imputation`). There are two such models, which have nothing in
common. The tables show the median trials of each method and task under each model, and how well each model predicts
records that it has not seen.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, fields, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, pick, read
from bench.machine import bench_env
from bench.models.laboratory import method_named
from bench.processes import die_with_parent
from bench.replay.columns import all_methods, is_deep
from bench.replay.cost_means import KINDS, ImputationModel
from bench.replay.open_runs import OpenRun, OpenTask, run_open
from bench.replay.open_table import figures, table
from bench.replay.replay_pool import collect
from bench.replay.replay_runs import TOLERANCE, near_best
from bench.replay.replay_table import OURS
from bench.replay.run_cache import Kind, RunCache, cache_code
from bench.result import BenchResult
from fleet_tune.base.task_data import TaskData
from policies.search.generators import AnnealingGenerator
from policies.search.methods import Method

PAPERS = ("autotvm", "adatune", "ansor", "bansor")
METHODS = (OURS, "random", *PAPERS)
"""Default methods: those that train no neural network."""


def takes_long(method: Method) -> bool:
    """Return true if a run of the method takes long: if it trains a neural network, or walks through the open space
    step by step (simulated annealing)."""
    return is_deep(method) or isinstance(method.generator, AnnealingGenerator)


_tasks: list[TaskData] = []


def _start(dataset: Path) -> None:
    die_with_parent()
    _tasks.extend(read(dataset))


@lru_cache(maxsize=8)
def _open_task(at: int, kind: ImputationModel) -> OpenTask:
    return OpenTask(_tasks[at], kind)


def _one_run(at: int, kind: ImputationModel, method: Method, seed: int, most_trials: int) -> OpenRun:
    return run_open(_open_task(at, kind), method, seed, most_trials, time.process_time)


def _one_filling(at: int, kind: ImputationModel) -> dict[str, float]:
    """Return the quality of a model, and ``at_goal``: the share of the open space whose imputed cost is at the
    target."""
    task = _open_task(at, kind)
    return {**asdict(task.filling.held_out), "at_goal": task.share_at_goal()}


def run(
    dataset: Path,
    methods: Sequence[str],
    tasks: Sequence[str],
    fillings: Sequence[ImputationModel],
    seeds: int,
    slow_seeds: int,
    most_trials: int,
    jobs: int,
    *,
    batch: int | None = None,
    parts: Path | None = None,
) -> BenchResult:
    """Run all methods on all tasks under each imputation model, and return the benchmark's result.

    Args:
        dataset: File of the recorded tasks.
        methods: Names of methods, or ``all``.
        tasks: Parts of the names of tasks; all tasks if empty.
        fillings: Imputation models.
        seeds: Runs of each method on each task.
        slow_seeds: Most runs of a method that :func:`takes_long`.
        most_trials: Trials after which a run ends. A run that has not arrived counts with these trials.
        jobs: Number of processes.
        batch: Trials of a round of every method; None for each method's own.
        parts: File of cached runs, which are not made again; new runs are added to it.

    ``ours`` of the result is the sum of the median trials of ``fleet`` over models and tasks, or of the first method if
    ``fleet`` is not among them. ``peer`` is the least such sum of the papers' methods. ``details`` has the figures of
    :func:`figures` for each model.
    """
    measured = read(dataset)
    names = labels(measured)
    chosen = pick(names, tasks)
    variants = {name: method_named(name) for name in all_methods(methods)}
    if batch is not None:
        variants = {name: replace(each, batch=batch) for name, each in variants.items()}
    seeds_of = {name: min(seeds, slow_seeds) if takes_long(each) else seeds for name, each in variants.items()}
    began = time.perf_counter()
    runs, models = play(dataset, chosen, fillings, variants, seeds_of, most_trials, jobs, parts)
    of_kind = {kind: figures(runs[kind], [names[at] for at in chosen], chosen) for kind in fillings}
    details = {
        "methods": list(variants),
        "fillings": {
            kind: {**of_kind[kind], "model": {names[at]: models[kind, at] for at in chosen}} for kind in fillings
        },
        "tasks": {names[at]: {"candidates": len(measured[at]), "near_best": near_best(measured[at])} for at in chosen},
        "batch": {name: each.batch for name, each in variants.items()},
        "seeds": seeds_of,
        "most_trials": most_trials,
        "tolerance": TOLERANCE,
        "dataset": dataset.name,
        "elapsed_secs": time.perf_counter() - began,
        "jobs": jobs,
    }
    sums = {name: sum(of_kind[kind]["sum"][name] for kind in fillings) for name in variants}
    ours = sums[OURS if OURS in sums else next(iter(sums))]
    others = [total for name, total in sums.items() if name.split(":")[0] in PAPERS]
    peer = min(others) if OURS in sums and others else None
    return BenchResult("open-replay", ours, peer, peer / ours if peer is not None else None, "trials", details)


def play(
    dataset: Path,
    tasks: Sequence[int],
    fillings: Sequence[ImputationModel],
    variants: Mapping[str, Method],
    seeds: Mapping[str, int],
    most_trials: int,
    jobs: int,
    parts: Path | None = None,
) -> tuple[
    dict[ImputationModel, dict[tuple[str, int], list[OpenRun]]], dict[tuple[ImputationModel, int], dict[str, float]]
]:
    """Return the runs by model and by (variant, task), in the order of the seeds, and the figures of each model of each
    task (:func:`_one_filling`). ``parts``: file of cached runs, see :func:`run`."""
    names = labels(read(dataset))
    os.environ.update(bench_env(1))  # before the workers start
    runs: dict[tuple[ImputationModel, str, int, int], OpenRun] = {}
    models: dict[tuple[ImputationModel, int], dict[str, float]] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_start, initargs=(dataset,)) as pool:
        waiting: dict[Future[Any], Callable[[Any], None]] = {}
        for kind in fillings:
            kept = RunCache(parts, dataset, cache_kind(kind, most_trials), cache_code(parts, __name__))
            for at in tasks:  # task after task: a process caches only the few models that it used last
                known: Future[Any] = pool.submit(_one_filling, at, kind)
                waiting[known] = partial(models.__setitem__, (kind, at))
                for name, chosen in variants.items():
                    for seed in range(seeds[name]):
                        found = kept.find(chosen, names[at], seed)
                        if found is not None:
                            runs[kind, name, at, seed] = found
                            continue

                        def keep(
                            run: OpenRun,
                            key: tuple[ImputationModel, str, int, int] = (kind, name, at, seed),
                            kept: RunCache[OpenRun] = kept,
                        ) -> None:
                            runs[key] = run
                            kept.add(variants[key[1]], names[key[2]], key[3], run)

                        waiting[pool.submit(_one_run, at, kind, chosen, seed, most_trials)] = keep
        collect(waiting)
    return {
        kind: {
            (name, at): [runs[kind, name, at, seed] for seed in range(seeds[name])] for name in variants for at in tasks
        }
        for kind in fillings
    }, models


def cache_kind(filling: ImputationModel, most_trials: int) -> Kind[OpenRun]:
    """Return the kind of the cached runs. Runs under another model or with another limit of trials have another
    kind."""
    names = [each.name for each in fields(OpenRun)]
    return Kind(
        f"open, {filling}, {most_trials} trials", asdict, lambda line: OpenRun(**{name: line[name] for name in names})
    )


BENCHMARK = Benchmark(
    name="open-replay",
    help="Measured trials in the open space until a candidate within 5% of the best measured is found.",
    options=(
        options.dataset(),
        click.Option(
            ["--method", "methods"],
            multiple=True,
            default=METHODS,
            show_default=True,
            help="A method of fleet-tune, or all.",
        ),
        options.tasks("all tasks"),
        click.Option(
            ["--filling", "fillings"],
            multiple=True,
            type=click.Choice(KINDS),
            default=KINDS,
            show_default=True,
            help="What a candidate costs that was not measured: by which model of those that were.",
        ),
        options.count("--seeds", 10),
        options.count("--slow-seeds", 5, "Seeds at most of methods with a neural network or with annealing."),
        options.count("--most-trials", 512, "Trials after which a run ends that has not arrived."),
        click.Option(
            ["--batch"], type=click.IntRange(min=1), help="Trials of a round of every method; else each its own."
        ),
        options.run_cache(),
        options.jobs(),
    ),
    short=("--task", "56x56x64", "--method", "fleet", "--method", "random", "--seeds", "3"),
    run=run,
    table=table,
)
