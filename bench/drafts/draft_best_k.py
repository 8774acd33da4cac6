"""Best-k of a draft, and of chance (Pruner's figure 14): the k-th lowest latency among the kept candidates.

With ``w_i`` the weight of task ``i``, ``L_i*`` its lowest latency and ``L_i,k`` the k-th lowest of the kept candidates,

    Best-k = sum_i L_i* w_i / sum_i L_i,k w_i                                                        (equation 3)

As in :mod:`bench.drafts.draft_penalties`, each scorer ranks all candidates of a task that ran. The paper keeps 256 and
512 of 4,000; the same shares are kept here. A dataset takes the place of a network of the paper. Chance is the exact
expectation for a random choice of the same size, so there are no seeds. If fewer than k candidates of a task are kept,
the slowest of them counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.benchmark import Benchmark
from bench.datasets import DATA, read
from bench.drafts.draft_penalties import CHANCE, EXPLORED, found_secs
from bench.result import BenchError, BenchResult
from bench.tables import markdown

KEPT = (256, 512)
PLACES = (1, 5, 20)
"""The values of k. The text of the paper does not say which values it shows besides 1."""
OURS, PAPER = "our analyzer", "equation 1"


def best_k(best_secs: Sequence[float], kth_secs: Sequence[float], weights: Sequence[float]) -> float:
    """Return equation 3 from the lowest latency of each task, the k-th lowest of its kept candidates (seconds), and the
    weights of the tasks."""
    above = sum(secs * weight for secs, weight in zip(best_secs, weights, strict=True))
    return above / sum(secs * weight for secs, weight in zip(kth_secs, weights, strict=True))


def run(datasets: Sequence[Path]) -> BenchResult:
    """Return Best-k for each dataset, scorer, size and k, over the described tasks. ``ours``: our analyzer with 512
    kept and k = 1, the mean over the datasets; ``peer``: the same with equation 1.

    Raises :class:`BenchError` for a dataset without a described task.
    """
    lines: dict[str, dict[str, dict[str, float]]] = {}
    tasks: dict[str, int] = {}
    for path in datasets:
        chosen = [data for data in read(path) if all(sketch.statements for sketch in data.sketches)]
        name = path.stem if path.parent == DATA else f"{path.parent.name}/{path.stem}"
        if not chosen:
            raise BenchError(f"no task of {path} is described: leave it out of --dataset")
        best, weights = [data.best_secs for data in chosen], [data.task.weight for data in chosen]
        tasks[name] = len(chosen)
        lines[name] = {
            scorer: {
                f"{kept}@{k}": best_k(best, [found_secs(data, scorer, kept / EXPLORED, k) for data in chosen], weights)
                for kept in KEPT
                for k in PLACES
            }
            for scorer in (PAPER, OURS, CHANCE)
        }
    details = {"best_k": lines, "tasks": tasks, "explored": EXPLORED}
    last = f"{KEPT[-1]}@{PLACES[0]}"
    ours, peer = (sum(line[scorer][last] for line in lines.values()) / len(lines) for scorer in (OURS, PAPER))
    return BenchResult("draft-best-k", ours, peer, ours / peer, "Best-1", details)


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    rows = [
        (f"{name} ({details['tasks'][name]} tasks): {scorer}", *(f"{value:.3f}" for value in line.values()))
        for name, by_scorer in details["best_k"].items()
        for scorer, line in by_scorer.items()
    ]
    first = next(iter(next(iter(details["best_k"].values())).values()))
    return markdown((f"Best-k of what is kept of {details['explored']:,}, size@k", *first), rows)


def _datasets(_context: click.Context, _option: click.Parameter, given: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(path.absolute() for path in given) or tuple(sorted(DATA.rglob("*.ftd")))


BENCHMARK = Benchmark(
    name="draft-best-k",
    help="Best-k of a draft, by Pruner's equation 1, by our analyzer and by chance (its figure 14).",
    options=(
        click.Option(
            ["--dataset", "datasets"],
            multiple=True,
            type=click.Path(path_type=Path),
            callback=_datasets,
            help="File of 'fleet-tune dataset'; else all of bench/data.",
        ),
    ),
    short=("--dataset", "bench/data/grouped/znver5-1.ftd"),
    run=run,
    table=table,
)
