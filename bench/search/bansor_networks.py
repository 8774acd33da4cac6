"""Bansor's tables III and IV by replay: all tasks of a dataset as one network, without and with its two bandits.

``Ansor`` has neither, ``Bansor1`` the one over sketches, ``Bansor2`` the one over tasks too. All get the same number
of trials. Table III is what the network's latency (the sum of the tasks' best costs by their weights) is then, here as
a multiple of what the recorded candidates allow. Table IV is the trials that each needs to be as good as Ansor in the
end: Ansor's run of the same seed, whose own trials are those after which it found nothing better.

``--task-constant`` adds Bansor2 with other constants C of equation 5, and C = 0.3 over the sketches as ever. The paper
chose one C for both out of 0.1, 0.3, 0.5 and 1 (section V); ``bench ablations --paper bansor`` has those over the
sketches.

The paper gives 1,000 trials a task, and Ansor's code has rounds of 64: 16 rounds of each task. A dataset has not that
many candidates: rounds of 16 of 200 trials a task are 12.
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
    """Variants with neither bandit, the one over sketches, and both, in rounds of ``batch``; then both with each of
    ``constants`` as the C of equation 5."""
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
    """The figures of :func:`lines` for rounds of each of ``batches``; ``trials``: of each task; ``constants``: see
    :func:`variants`."""
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
    """Quartiles of each variant over the seeds: ``latency`` after all trials (1: the best that there is), ``near``:
    the trials until it is within :data:`TOLERANCE` of that, ``matched``: until it is what Ansor's of the same seed is
    after all trials. A run that does not come so far counts all of its trials."""
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
