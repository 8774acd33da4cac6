"""Our cost models compared with MetaSchedule's: quality of their rankings, in-domain and across tasks, and their time.

In-domain: a fifth of a task's candidates is the test set. A model learns from 16, 64, 256 or all of the other records
and ranks the test set. Across tasks: a model learns from the same numbers of records of every task of one dataset, and
ranks all candidates of every task of another dataset, of which it has no records. The figures are Pruner's Top-1 and
Top-5 (equation 2) over all tasks, and Spearman's correlation, each averaged over seeds. A seed determines the choice of
records and the random numbers of the models.

The in-domain comparison has a pre-trained contender. It is trained on the dataset of other tasks, so it has never seen
the task that it is adapted to.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels as task_labels
from bench.datasets import other_tasks_path, read
from bench.machine import bench_env
from bench.models.contenders import CONTENDERS, DEFAULT, across, contenders, in_domain, prediction_secs, pretrain
from bench.models.ranking import weighted_top_k
from bench.processes import die_with_parent, run_json
from bench.result import BenchError, BenchResult
from bench.tables import markdown

COUNTS = (16, 64, 256, 0)
"""Records of each task to learn from; 0: all."""
ASKED = "64"
PEER = "metaschedule"
LABELS = tuple(each.label for each in CONTENDERS)
_TIMEOUT_SECS = 7200.0
_REPEATS = 5


def run(
    dataset: Path,
    other_tasks: Path,
    models: Sequence[str],
    seeds: int,
    limit: int | None,
    jobs: int,
    *,
    peer: bool = True,
    within: bool = True,
) -> BenchResult:
    """Train and test all models, and return the benchmark's result.

    ``ours`` is the Top-1 of ``default`` (if it is not compared, of the first model) after 64 records of a task.
    ``peer`` is that of MetaSchedule's model. Raise :class:`BenchError` for an unknown label, or if there is nothing to
    show.

    Args:
        dataset: file of the tasks.
        other_tasks: file of the tasks for the comparison across tasks.
        models: labels of :data:`CONTENDERS`; empty: all.
        seeds: number of seeds.
        limit: largest number of candidates of each task; None: all.
        jobs: number of processes.
        peer: compare MetaSchedule's model too.
        within: compare in-domain too, not only across tasks.
    """
    unknown = set(models) - set(LABELS)
    if unknown:
        raise BenchError(f"no model of the comparison is called {sorted(unknown)}: {', '.join(LABELS)}")
    chosen = tuple(label for label in LABELS if label in models or not models)
    counts = tuple(count for count in COUNTS if count == 0 or limit is None or count <= limit // 2)
    tasks, others = read(dataset), read(other_tasks)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=die_with_parent) as pool:
        bases = _pretrained(pool, other_tasks, chosen, seeds if within else 0, limit)
        between = {
            label: {
                str(count): [
                    pool.submit(across, dataset, other_tasks, contender, count, seed, limit) for seed in range(seeds)
                ]
                for count in counts
            }
            for label, contender in ((each.label, each) for each in contenders(chosen))
            if contender.across
        }
        domains = [
            [
                pool.submit(in_domain, dataset, at, chosen, counts, seed, limit, bases.get(seed))
                for at in range(len(tasks))
            ]
            for seed in range(seeds if within else 0)
        ]
        results = [[waiting.result() for waiting in row] for row in domains]
        inside = {
            label: {
                str(count): _figures(
                    [[by_task[label][str(count)][:4] for by_task in row] for row in results],
                    [data.task.weight for data in tasks],
                    [by_task[label][str(count)][4] for row in results for by_task in row],
                )
                for count in counts
            }
            for label in (chosen if within else ())
        }
        outside = {
            label: {
                count: _across_figures(each, [data.task.weight for data in others]) for count, each in by_count.items()
            }
            for label, by_count in between.items()
        }
        timed = {
            each.label: pool.submit(prediction_secs, dataset, each, _REPEATS, limit) for each in contenders(chosen)
        }
        predicted = {label: waiting.result() for label, waiting in timed.items()}
    if peer:
        _add_peer(dataset, other_tasks, counts, seeds, limit, jobs, inside, outside, predicted)
    if not within:
        inside = {}
    details = {
        "in_domain": inside,
        "across": outside,
        "prediction_secs": predicted,
        "seeds": seeds,
        "tasks": list(task_labels(tasks)),
        "other_tasks": list(task_labels(others)),
        "candidates": sum(min(len(data), limit or len(data)) for data in tasks),
        "dataset": dataset.name,
    }
    shown = inside or outside
    if not shown:
        raise BenchError(f"none of these ranks tasks that it has no record of: {', '.join(chosen)}")
    label = DEFAULT if DEFAULT in shown else next(iter(shown))
    asked = ASKED if ASKED in shown[label] else str(counts[0])
    ours = shown[label][asked]["top_1"]
    theirs = shown[PEER][asked]["top_1"] if peer else None
    return BenchResult("cost-model", ours, theirs, ours / theirs if theirs else None, "Top-1", details)


def _pretrained(
    pool: ProcessPoolExecutor, other_tasks: Path, chosen: tuple[str, ...], seeds: int, limit: int | None
) -> dict[int, bytes]:
    wanted = [each for each in contenders(chosen) if each.pretrained]
    waiting = {
        seed: pool.submit(pretrain, other_tasks, wanted[0], 0, seed, limit) for seed in range(seeds if wanted else 0)
    }
    return {seed: future.result() for seed, future in waiting.items()}


def _add_peer(
    dataset: Path,
    other_tasks: Path,
    counts: tuple[int, ...],
    seeds: int,
    limit: int | None,
    jobs: int,
    inside: dict[str, Any],
    outside: dict[str, Any],
    predicted: dict[str, float],
) -> None:
    tasks, others = read(dataset), read(other_tasks)
    most = limit or max(len(data) for data in (*tasks, *others))
    setting = [
        "--dataset",
        str(dataset),
        "--other-tasks",
        str(other_tasks),
        "--seeds",
        str(seeds),
        "--limit",
        str(most),
    ]
    for count in counts:
        setting += ["--count", str(count)]
    command = ["-m", "bench.peers.per_store_models", *setting, "--jobs", str(jobs)]
    figures = run_json(command, env=bench_env(1), timeout_secs=_TIMEOUT_SECS)
    weights = [data.task.weight for data in tasks]
    inside[PEER] = {
        str(count): _figures(
            [[by_task[str(count)][seed][:4] for by_task in figures["in_domain"]] for seed in range(seeds)],
            weights,
            [by_task[str(count)][seed][4] for by_task in figures["in_domain"] for seed in range(seeds)],
        )
        for count in counts
    }
    other_weights = [data.task.weight for data in others]
    outside[PEER] = {
        count: _figures([ranked for ranked, _ in each], other_weights, [secs for _, secs in each])
        for count, each in figures["across"].items()
    }
    predicted[PEER] = figures["prediction_secs"]


def _across_figures(waiting: list[Future[tuple[list[list[float]], float]]], weights: list[float]) -> dict[str, Any]:
    results = [future.result() for future in waiting]
    return _figures([ranked for ranked, _ in results], weights, [secs for _, secs in results])


def _figures(ranked: list[list[list[float]]], weights: Sequence[float], train_secs: Sequence[float]) -> dict[str, Any]:
    """Return the figures of ``ranked[seed][task]`` (:meth:`Ranked.listed`): Top-1 and Top-5 of all tasks together, as
    mean and worst over the seeds; their means over the seeds by task; the mean correlation; and the median seconds of
    training."""
    table = np.array(ranked)  # (seeds, tasks, 4)
    first = [weighted_top_k(seed[:, 0], seed[:, 1], weights) for seed in table]
    top = [weighted_top_k(seed[:, 0], seed[:, 2], weights) for seed in table]
    return {
        "top_1": float(np.mean(first)),
        "top_5": float(np.mean(top)),
        "top_1_worst": float(np.min(first)),
        "top_5_worst": float(np.min(top)),
        "top_1_by_task": (table[:, :, 0] / table[:, :, 1]).mean(axis=0).tolist(),
        "top_5_by_task": (table[:, :, 0] / table[:, :, 2]).mean(axis=0).tolist(),
        "correlation": float(table[:, :, 3].mean()),
        "train_secs": float(np.median(train_secs)),
    }


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    parts = []
    for key, title in (("in_domain", "in-domain"), ("across", "across tasks")):
        if not details[key]:
            continue
        counts = list(next(iter(details[key].values())))
        shown = [f"{count} records" if count != "0" else "all records" for count in counts]
        header = (f"{title}: Top-1 / Top-5 / correlation", *shown, "training, ms", "512 predicted, ms")
        rows = [
            (
                f"`{model}`",
                *(_ranking(figures[count]) for count in counts),
                " / ".join(f"{figures[count]['train_secs'] * 1e3:.0f}" for count in counts),
                f"{details['prediction_secs'][model] * 1e3:.0f}",
            )
            for model, figures in details[key].items()
        ]
        parts.append(markdown(header, rows))
    return "\n\n".join(parts)


def _ranking(figures: Mapping[str, float]) -> str:
    return f"{figures['top_1']:.3f} / {figures['top_5']:.3f} / {figures['correlation']:.2f}"


BENCHMARK = Benchmark(
    name="cost-model",
    help="Top-1 and Top-5 of every cost model, in-domain and across tasks, beside MetaSchedule's.",
    options=(
        options.dataset(),
        click.Option(
            ["--other-tasks"],
            type=click.Path(path_type=Path),
            callback=lambda _context, _option, path: other_tasks_path(path),
            help="Dataset of other tasks; else the one in bench/data/other-tasks.",
        ),
        click.Option(["--model", "models"], multiple=True, help="A model of the comparison; else all."),
        options.count("--seeds", 3),
        options.limit(40),
        click.Option(["--peer/--no-peer"], default=True, show_default=True, help="MetaSchedule's model too."),
        click.Option(["--within/--no-within"], default=True, show_default=True, help="In-domain too."),
        options.jobs(),
    ),
    short=("--seeds", "1", "--limit", "160"),
    run=run,
    table=table,
)
