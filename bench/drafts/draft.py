"""The draft: candidates scored per second on one core, and the quality of the share that it keeps.

Quality is Best-1 (Pruner equation 3 with k = 1), averaged over seeds: with ``w_i`` the weight of task ``i``, ``L_i*``
the lowest latency in its explored set and ``L_i`` the lowest in the kept share of this set,

    Best-1 = sum_i(L_i* w_i) / sum_i(L_i w_i)

Each seed draws the records to learn from (64 of each task); all other candidates are the explored set. One eighth of it
is kept, as ranked by one of these:

- our draft: the analyzer as it is; the analyzer calibrated by the records; the model of ``fleet`` trained on them
- MetaSchedule's cost model trained on the same records (:mod:`bench.peers.per_store`)
- chance
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, read, split, with_enough
from bench.drafts.draft_process import SCORED, SCORERS
from bench.machine import bench_env
from bench.processes import run_json
from bench.result import BenchError, BenchResult, spread
from bench.tables import markdown
from fleet_tune.base.task_data import TaskData

OURS = "calibrated"
_TIMEOUT_SECS = 7200.0
_RANDOM_DRAWS = 50
"""Random choices per seed."""


def run(dataset: Path, seeds: int, calibration: int, share: int, limit: int | None, jobs: int) -> BenchResult:
    """Return speed and quality over those tasks of the dataset that have enough candidates.

    ``calibration``: records to learn from, of each task; ``share``: one candidate in so many is kept; ``limit``: only
    the first candidates of each task; ``jobs``: processes of the peer's feature extraction and training.
    """
    everything = read(dataset)
    chosen = with_enough(everything, calibration, limit)
    measured = [everything[at] for at in chosen]
    all_names = labels(everything)
    names = [all_names[at] for at in chosen]
    most = limit or max(map(len, measured))
    setting = ["--dataset", str(dataset), "--seeds", str(seeds)]
    setting += ["--calibration", str(calibration), "--share", str(share), "--limit", str(most)]
    cpu = str(max(os.sched_getaffinity(0)))
    mine = run_json(
        ["-m", "bench.drafts.draft_process", *setting, "--cpu", cpu], env=bench_env(1), timeout_secs=_TIMEOUT_SECS
    )
    theirs = run_json(
        ["-m", "bench.peers.per_store", *setting, "--jobs", str(jobs)], env=bench_env(1), timeout_secs=_TIMEOUT_SECS
    )
    assert all(len(row) == len(measured) for row in theirs["best_secs"]), "the peer skips other tasks"
    weights = [data.task.weight for data in measured]
    ideal = [by_scorer["ideal"] for by_scorer in mine["best_secs"]]
    chosen_secs = {name: [by_scorer[name] for by_scorer in mine["best_secs"]] for name in SCORERS}
    chosen_secs["metaschedule"] = [[row[at] for row in theirs["best_secs"]] for at in range(len(measured))]
    best = {name: spread(best_1(ideal, by_task, weights)) for name, by_task in chosen_secs.items()}
    means = {name: float(np.mean(best_1(ideal, by_task, weights))) for name, by_task in chosen_secs.items()}
    chance = random_best_1(measured, seeds, calibration, share, most)
    means["random"], best["random"] = float(np.mean(chance["all"])), spread(chance["all"])
    by_task = {
        task: {
            **{name: float(np.mean(best_1([ideal[at]], [secs[at]], [1]))) for name, secs in chosen_secs.items()},
            "random": float(np.mean(chance[at])),
        }
        for at, task in enumerate(names)
    }
    details = {
        "best_1": means,
        "best_1_spread": best,
        "best_1_by_task": by_task,
        "speed": speed_figures(mine["speed"]),
        "speed_by_task": dict(zip(names, mine["speed"], strict=True)),
        "candidates_a_call": SCORED,
        "seeds": seeds,
        "calibration": calibration,
        "share": share,
        "candidates": {name: min(len(data), most) for name, data in zip(names, measured, strict=True)},
        "too_few": [name for name in all_names if name not in names],
        "peer_extract_secs": theirs["extract_secs"],
        "peer_train_secs": theirs["train_secs"],
        "points": dict(zip(names, mine["points"], strict=True)),
        "dataset": dataset.name,
    }
    ours, peer = means[OURS], means["metaschedule"]
    return BenchResult("draft", ours, peer, ours / peer if peer > 0 else None, "Best-1", details)


def best_1(
    ideal: Sequence[Sequence[float]], chosen: Sequence[Sequence[float]], weights: Sequence[float]
) -> list[float]:
    """Return equation 3 for every seed. ``ideal[i][s]`` and ``chosen[i][s]`` are the lowest latencies (seconds) of task
    ``i`` and seed ``s`` in the explored set and in the kept share.

    The value is 0 if the kept share of a task has no success (an infinite latency).
    """
    totals = []
    for best, reached in zip(zip(*ideal, strict=True), zip(*chosen, strict=True), strict=True):
        below = sum(secs * weight for secs, weight in zip(reached, weights, strict=True))
        above = sum(secs * weight for secs, weight in zip(best, weights, strict=True))
        totals.append(above / below if math.isfinite(below) else 0.0)
    return totals


def random_best_1(
    measured: Sequence[TaskData], seeds: int, calibration: int, share: int, limit: int
) -> dict[int | Literal["all"], list[float]]:
    """Return Best-1 of a random share of the same explored sets: for all tasks together (``"all"``) and by the task's
    position, one value per seed, which is the mean of several draws."""
    scores: dict[int | Literal["all"], list[float]] = {"all": [], **{at: [] for at in range(len(measured))}}
    for seed in range(seeds):
        rng = np.random.default_rng([seed, share])
        ideal, chosen = [], []
        for data in measured:
            costs = data.cost_secs[split(data, seed, calibration, limit)[1]]
            size = max(len(costs) // share, 1)
            ideal.append([float(costs.min())] * _RANDOM_DRAWS)
            chosen.append([float(rng.permutation(costs)[:size].min()) for _ in range(_RANDOM_DRAWS)])
        weights = [data.task.weight for data in measured]
        scores["all"].append(float(np.mean(best_1(ideal, chosen, weights))))
        for at in range(len(measured)):
            scores[at].append(float(np.mean(best_1([ideal[at]], [chosen[at]], [1]))))
    return scores


def speed_figures(by_task: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the candidates per second over all described tasks, for equally many candidates of each task: this is the
    harmonic mean. Raises :class:`BenchError` if no task is described."""
    described = [task for task in by_task if task]
    if not described:
        raise BenchError("no task of the dataset is described")
    return {name: len(described) / sum(1 / task[name] for task in described) for name in described[0]}


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    names = {
        "analyzer": "analyzer alone",
        "calibrated": "calibrated",
        "with-model": "with the model",
        "metaschedule": "MetaSchedule's model",
        "random": "random",
    }
    rows = [
        (f"`{task}`", *(f"{figures[scorer]:.3f}" for scorer in names))
        for task, figures in details["best_1_by_task"].items()
    ]
    rows.append(("all, by equation 3", *(f"{details['best_1'][scorer]:.3f}" for scorer in names)))
    rows.append(("its worst seed", *(f"{details['best_1_spread'][scorer]['min']:.3f}" for scorer in names)))
    header = (f"Best-1 at 1/{details['share']}, {details['calibration']} records", *names.values())
    a_call = f"{details['candidates_a_call']:,} a call"
    speeds = {
        "analyzer": f"the analyzer, {a_call}",
        "calibrated": f"calibrated, {a_call}",
        "analyzer_population": "the analyzer, a generation a call",
        "calibrated_population": "calibrated, a generation a call",
    }
    by_task = [(f"`{task}`", figures) for task, figures in details["speed_by_task"].items() if figures]
    fast = [
        (name, *(f"{figures[kind]:,.0f}" for kind in speeds))
        for name, figures in [*by_task, ("as many of each", details["speed"])]
    ]
    head = ("candidates scored a second on one core", *speeds.values())
    few = details["too_few"]
    skipped = f"\n\nSkipped, with too few candidates: {', '.join(f'`{name}`' for name in few)}." if few else ""
    return markdown(header, rows) + "\n\n" + markdown(head, fast) + skipped


BENCHMARK = Benchmark(
    name="draft",
    help="Candidates scored a second, and Best-1 of the drafted share against MetaSchedule's cost model and chance.",
    options=(
        options.dataset(),
        options.count("--seeds", 100),
        options.count("--calibration", 64, "Records to learn from."),
        options.count("--share", 8, "One in so many is kept."),
        options.limit(1),
        options.jobs(),
    ),
    short=("--seeds", "10", "--limit", "300"),
    run=run,
    table=table,
)
