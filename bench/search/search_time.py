"""Seconds of search for each proposed batch of 64 on one core: ours, and MetaSchedule's evolutionary search.

Each side runs in a process of its own. Both are pinned to the same CPU and asked in turn. They search the same
workloads (the modules of the dataset) after the same number of records. The records are random measured candidates of
the dataset: of all sketches for us, of MetaSchedule's own sketches for MetaSchedule. The time of a batch includes
drafting, mutation, features and the use of the model; training is reported separately. ``ratio`` is the geometric mean
over all pairs of a task and a number of records.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, pick, read
from bench.machine import bench_env
from bench.processes import Conversation
from bench.result import BenchError, BenchResult, spread
from bench.tables import markdown, median_and_range

TASKS = ("matmul_add_relu", "matmul 12x", "conv2d_add_relu 56x56x64")
"""A dense layer, a batched matmul and a 3x3 convolution of the dataset in ``bench/data``."""
RECORDS = (64, 256)
_BATCH_TIMEOUT_SECS = 900.0

Sample = dict[str, Any]


def run(dataset: Path, tasks: Sequence[str], records: Sequence[int], rounds: int, method: str = "fleet") -> BenchResult:
    """Time ``rounds`` batches of each side for each task (by a part of its name) and number of records."""
    names = labels(read(dataset))
    chosen = pick(names, tasks)
    cpu = max(os.sched_getaffinity(0))
    common = ("--dataset", str(dataset), "--cpu", str(cpu))
    mine: dict[tuple[int, int], list[Sample]] = {(at, count): [] for at in chosen for count in records}
    peers: dict[tuple[int, int], list[Sample]] = {key: [] for key in mine}
    with (
        Conversation(["-m", "bench.search.search_process", *common, "--method", method], env=bench_env(1)) as us,
        Conversation(["-m", "bench.peers.evolutionary", *common], env=bench_env(1)) as them,
    ):
        for turn in range(-1, rounds):
            for at, count in mine:
                line = json.dumps({"task": at, "records": count, "round": turn + 1})
                ours, theirs = us.ask(line, _BATCH_TIMEOUT_SECS), them.ask(line, _BATCH_TIMEOUT_SECS)
                if turn >= 0:  # the first batch of each side, which loads libraries and fills caches, does not count
                    mine[at, count].append(ours)
                    peers[at, count].append(theirs)
    figures = [
        {"task": names[at], "records": count, **pair_figures(mine[at, count], peers[at, count])} for at, count in mine
    ]
    return BenchResult(
        bench="search-time",
        ours=statistics.geometric_mean([each["ours"]["median"] for each in figures]),
        peer=statistics.geometric_mean([each["peer"]["median"] for each in figures]),
        ratio=statistics.geometric_mean([each["ratio"] for each in figures]),
        unit="s per batch of 64",
        details={"method": method, "rounds": rounds, "pairs": figures, "dataset": dataset.name, "threads": 1},
    )


def pair_figures(mine: Sequence[Sample], peers: Sequence[Sample]) -> dict[str, Any]:
    """Return the medians and the spread of both sides' samples, and their ratio (above 1: we are faster).

    Raises :class:`BenchError` if a batch was empty.
    """
    short = [sample["candidates"] for sample in (*mine, *peers) if sample["candidates"] < 1]
    if short:
        raise BenchError(f"an empty batch was proposed: {short}")
    ours, peer = spread([s["secs"] for s in mine]), spread([s["secs"] for s in peers])
    return {
        "ours": ours,
        "peer": peer,
        "ratio": peer["median"] / ours["median"],
        "cpu_ratio": statistics.median(s["cpu_secs"] for s in peers) / statistics.median(s["cpu_secs"] for s in mine),
        "our_candidates": min(s["candidates"] for s in mine),
        "peer_candidates": min(s["candidates"] for s in peers),
        "our_observe_secs": statistics.median(s["observe_secs"] for s in mine),
        "our_train_secs": statistics.median(s["train_secs"] for s in mine),
        "peer_train_secs": statistics.median(s["train_secs"] for s in peers),
        "peer_scored_by_model": all(s["scored_by_model"] for s in peers),
    }


def table(result: Mapping[str, Any]) -> str:
    rows = [
        (
            f"`{pair['task']}`, {pair['records']} records",
            median_and_range(pair["ours"], scale=1e3, digits=0),
            median_and_range(pair["peer"], scale=1e3, digits=0),
            f"{pair['ratio']:.0f}",
            f"{pair['our_train_secs'] * 1e3:.0f}",
            f"{pair['peer_train_secs'] * 1e3:.0f}",
        )
        for pair in result["details"]["pairs"]
    ]
    header = ("ms a batch of 64", "ours", "MetaSchedule", "ratio", "our training", "MetaSchedule's training")
    return markdown(header, rows)


BENCHMARK = Benchmark(
    name="search-time",
    help="Seconds of search for each batch of 64, ours and MetaSchedule's, on one core.",
    options=(
        options.dataset(),
        options.tasks("a matmul, a 3x3 and a batched matmul", TASKS),
        click.Option(
            ["--records"], multiple=True, type=click.IntRange(min=64), default=list(RECORDS), show_default=True
        ),
        options.count("--rounds", 5),
        click.Option(["--method"], default="fleet", show_default=True),
    ),
    short=("--rounds", "2", "--records", "64"),
    run=run,
    table=table,
)
