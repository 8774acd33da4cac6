"""Effect of Pruner's penalties on a draft (its table 10): Best-1 of the kept candidates of a dataset.

Each scorer ranks all candidates of a task that ran, and the share that it ranks first is kept. Best-1 is equation 3
with k = 1. The paper keeps 50, 128, 256 and 512 of 4,000; the same shares are kept here, but at least one candidate.
The scorers are equation 1 with either reading of its l0_c, equation 1 without its compute penalties and without its
memory penalties, and our analyzer of CPUs. Chance is the exact expectation for a random choice of the same size, so
there are no seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, read
from bench.result import BenchResult
from bench.tables import markdown
from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from fleet_tune.base.task_data import TaskData
from policies.analysis.analyzer import feasible
from policies.analysis.equation_1 import equation_1_log_secs
from policies.arrays import Floats, Matrix
from policies.search.fitness import analyzer_log_secs

EXPLORED = 4000
CHANCE = "chance"
KEPT = (50, 128, 256, 512)
SCORERS: dict[str, Callable[[Sketch, Matrix, DeviceAbstraction], Floats]] = {
    "equation 1": equation_1_log_secs,
    "equation 1, l0_c with the square of S2": partial(equation_1_log_secs, squared=True),
    "without compute penalties": partial(equation_1_log_secs, without="compute"),
    "without memory penalties": partial(equation_1_log_secs, without="memory"),
    "our analyzer": analyzer_log_secs,
}


def run(dataset: Path) -> BenchResult:
    """Return Best-1 of every scorer and share, over all described tasks of the dataset together."""
    measured = read(dataset)
    chosen = [
        (name, data)
        for name, data in zip(labels(measured), measured, strict=True)
        if all(s.statements for s in data.sketches)
    ]
    weights = np.array([data.task.weight for _, data in chosen], dtype=np.float64)
    best = np.array([data.best_secs for _, data in chosen])
    lines: dict[str, dict[str, float]] = {}
    for scorer in (*SCORERS, CHANCE):
        lines[scorer] = {}
        for kept in KEPT:
            found = [found_secs(data, scorer, kept / EXPLORED, 1) for _, data in chosen]
            lines[scorer][str(kept)] = float(weights @ best / (weights @ np.array(found)))
    details = {"best_1": lines, "tasks": [name for name, _ in chosen], "dataset": dataset.name, "explored": EXPLORED}
    ours, peer = lines["our analyzer"][str(KEPT[-1])], lines["equation 1"][str(KEPT[-1])]
    return BenchResult("draft-penalties", ours, peer, ours / peer, "Best-1", details)


def found_secs(data: TaskData, scorer: str, share: float, k: int) -> float:
    """Return the latency in seconds of the ``k``-th best candidate that the scorer keeps of those that ran; for chance,
    the expected latency. If fewer than ``k`` are kept, it is that of the slowest."""
    cost_secs = data.cost_secs
    count = max(round(share * int(data.ok.sum())), 1)
    if scorer == CHANCE:
        return expected_kth(cost_secs[data.ok], count, min(k, count))
    scores = np.full(len(data), np.inf)
    for at, (sketch, matrix) in enumerate(zip(data.sketches, data.decisions, strict=True)):
        if len(matrix):
            said = SCORERS[scorer](sketch, matrix, data.abstraction)
            scores[data.rows(at)] = np.where(feasible(sketch, matrix, data.abstraction), said, np.inf)
    order = np.argsort(scores[data.ok], kind="stable")[:count]
    return float(np.sort(cost_secs[data.ok][order])[min(k, count) - 1])


def expected_kth(cost_secs: Floats, count: int, k: int) -> float:
    """Return the expected ``k``-th lowest of ``count`` costs that are drawn at random from ``n``. The ``i``-th lowest
    of all, ``c_(i)``, is the ``k``-th lowest of the draw if it is drawn with ``k - 1`` of the ``i - 1`` costs before it
    and ``count - k`` of the ``n - i`` after it:

        sum_i c_(i) C(i - 1, k - 1) C(n - i, count - k) / C(n, count)
    """
    total = len(cost_secs)
    ways = [comb(i - 1, k - 1) * comb(total - i, count - k) for i in range(1, total + 1)]
    all_ways = comb(total, count)
    return float(sum(cost * (each / all_ways) for cost, each in zip(np.sort(cost_secs).tolist(), ways, strict=True)))


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    head = (f"Best-1 of what is kept, of {details['explored']:,}", *(f"{kept}" for kept in KEPT))
    rows = [(scorer, *(f"{line[str(kept)]:.3f}" for kept in KEPT)) for scorer, line in details["best_1"].items()]
    return markdown(head, rows)


BENCHMARK = Benchmark(
    name="draft-penalties",
    help="What Pruner's penalties bring to a draft (its table 10).",
    options=(options.dataset(),),
    short=(),
    run=run,
    table=table,
)
