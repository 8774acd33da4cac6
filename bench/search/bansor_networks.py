"""Bansor's tables III and IV by replay: all tasks of a dataset as one network, without and with its two bandits.

``Ansor`` has neither bandit, ``Bansor1`` has the one over sketches, ``Bansor2`` has both, the one over tasks too. All
get the same number of trials. Table III is the latency of the network after these trials: the weighted sum of the
tasks' best costs, here as a multiple of the least sum that the recorded candidates allow. Table IV is the number of
trials until each variant is as good as Ansor's run of the same seed is in the end. For Ansor itself these are the
trials until its last improvement.

``--task-constant`` adds Bansor2 with other constants C of equation 5 over the tasks; over the sketches C stays 0.3. The
paper chose the same C for both, out of 0.1, 0.3, 0.5 and 1 (section V); ``bench ablations --paper bansor`` has these
values over the sketches.

The paper has 1,000 trials per task, and Ansor's code has rounds of 64 trials: 16 rounds of each task. A dataset does
not have that many candidates: 200 trials per task in rounds of 16 are 12 rounds.
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
from bench.datasets import labels, pick, read
from bench.replay import replay_pool
from bench.replay.replay_pool import Call, played
from bench.replay.replay_runs import TOLERANCE, Course, quartiles, run_course
from bench.replay.run_cache import COURSES, RunCache, cache_code
from bench.result import BenchResult
from bench.tables import markdown, median_and_quartiles
from policies.search.allocation import UcbSketches
from policies.search.bandits import UcbTasks
from policies.search.methods import Method, method_named

PEER = "Ansor"
BOTH = "Bansor2: over sketches and tasks"
BATCHES = (16, 64)


def variants(batch: int, constants: Sequence[float] = ()) -> dict[str, Method]:
    """Return the variants with neither bandit, with the one over sketches, and with both, in rounds of ``batch``
    trials; then those with both and each of ``constants`` as the C of equation 5 over the tasks."""
    ansor, bansor = method_named("ansor"), method_named("bansor")
    both = {
        PEER: ansor,
        "Bansor1: over sketches": replace(ansor, sketches=UcbSketches()),
        BOTH: bansor,
        **{f"Bansor2, C = {constant:g} over the tasks": _with_constant(bansor, constant) for constant in constants},
    }
    return {name: replace(method, batch=batch) for name, method in both.items()}


def _with_constant(method: Method, constant: float) -> Method:
    assert isinstance(method.tasks, UcbTasks)
    return replace(method, tasks=replace(method.tasks, exploration_constant=constant))


def _one(method: Method, chosen: tuple[int, ...], seed: int, trials: int) -> Course:
    return run_course([replay_pool.tasks[at] for at in chosen], method, seed, trials)


def run(
    dataset: Path,
    tasks: Sequence[str],
    batches: Sequence[int],
    seeds: int,
    trials: int,
    jobs: int,
    parts: Path | None = None,
    constants: Sequence[float] = (),
) -> BenchResult:
    """Return the figures of :func:`lines` for rounds of each of ``batches`` trials. ``ours`` and ``peer``: trials of
    Bansor2 and Ansor to Ansor's latency, in the rounds of the first of ``batches``.

    ``trials``: trials per task; ``parts``: a file that caches runs; ``constants``: see :func:`variants`.
    """
    names = labels(read(dataset))
    chosen = pick(names, tasks)
    together, budget, began = [names[at] for at in chosen], trials * len(chosen), time.perf_counter()
    methods = {batch: variants(batch, constants) for batch in batches}
    calls = {
        (batch, name, seed): Call(
            method, f"{budget} trials of {', '.join(together)}", seed, _one, (method, chosen, seed, budget)
        )
        for seed in range(seeds)
        for batch in batches
        for name, method in methods[batch].items()
    }
    runs = played(dataset, jobs, RunCache(parts, dataset, COURSES, cache_code(parts, __name__)), calls)
    figures = {
        str(batch): lines({name: [runs[batch, name, seed] for seed in range(seeds)] for name in methods[batch]})
        for batch in batches
    }
    details = {
        "tasks": together,
        "trials": budget,
        "seeds": seeds,
        "rounds": figures,
        "dataset": dataset.name,
        "elapsed_secs": time.perf_counter() - began,
    }
    first = figures[str(batches[0])]
    ours, peer = (first[name]["matched"]["median"] for name in (BOTH, PEER))
    return BenchResult("bansor-networks", ours, peer, peer / ours, "trials", details)


def lines(runs: Mapping[str, Sequence[Course]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return these figures of each variant, as quartiles over the seeds:

    - ``latency``: latency after all trials, as a multiple of the least possible latency
    - ``near``: trials until the latency is within :data:`TOLERANCE` of the least possible latency
    - ``matched``: trials until the latency is that of Ansor's run of the same seed after all trials

    A run that does not reach the latency counts with all of its trials.
    """
    goals = [course.best for course in runs[PEER]]
    return {
        name: {
            "latency": quartiles([course.best for course in courses]),
            "near": quartiles([float(course.trials_to(1 + TOLERANCE)) for course in courses]),
            "matched": quartiles([float(course.trials_to(goal)) for course, goal in zip(courses, goals, strict=True)]),
        }
        for name, courses in runs.items()
    }


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    rows = []
    for batch, figures in details["rounds"].items():
        goal = figures[PEER]["matched"]["median"]
        for name, line in figures.items():
            saving = f"{goal / line['matched']['median']:.2f}" if name != PEER else ""
            rows.append(
                (
                    f"rounds of {batch}: {name}",
                    median_and_quartiles(line["latency"], 3),
                    median_and_quartiles(line["near"]),
                    median_and_quartiles(line["matched"]),
                    saving,
                )
            )
    head = (
        f"{len(details['tasks'])} tasks together, {details['trials']:,} trials, {details['seeds']} seeds",
        "latency in the end (1: the best there is)",
        "trials to within 5%",
        "trials to Ansor's latency",
        "fewer by",
    )
    return markdown(head, rows)


BENCHMARK = Benchmark(
    name="bansor-networks",
    help="Bansor's tables III and IV by replay: all tasks together, without and with its bandits.",
    options=(
        options.dataset(),
        options.tasks("all tasks"),
        click.Option(
            ["--batch", "batches"],
            multiple=True,
            type=click.IntRange(min=1),
            default=list(BATCHES),
            show_default=True,
            help="Trials of a round.",
        ),
        click.Option(
            ["--task-constant", "constants"],
            multiple=True,
            type=click.FloatRange(min=0),
            help="Also both bandits with this C over the tasks.",
        ),
        options.count("--seeds", 5),
        options.count("--trials", 200, "Of each task."),
        options.run_cache(),
        options.jobs(),
    ),
    short=("--batch", "16", "--seeds", "1", "--trials", "32"),
    run=run,
    table=table,
)
