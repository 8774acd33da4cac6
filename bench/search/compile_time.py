"""Seconds of tuning by method: Pruner's tables 7 and 13, seconds of search beside those of building and measuring.

Each method searches the whole space of a task. In each round it proposes candidates, observes as many recorded
candidates of the dataset in their place (nothing is built or measured), and trains its model, until it has observed the
given number of trials. The seconds of proposing and training are processor time of one core. The seconds of building
and measuring are the recorded ones, and every method observes the same candidates.

``ansor``, ``pruner`` and ``moa-pruner`` are the rows of table 7; ``moa-pruner`` also has a row in which it is trained
less often. Two rows are for table 13: methods that are never trained, with and without the draft (LSE). Like
``moa-pruner``, they start from the PaCM that comes with fleet-tune.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import labels, observations, pick, read
from bench.models.laboratory import method_named
from bench.replay import replay_pool
from bench.replay.replay_pool import Call, played
from bench.replay.replay_runs import RecordedTask, trains_after
from bench.replay.run_cache import Kind, RunCache, cache_code
from bench.result import BenchResult
from bench.search.ablations import PRETRAINED, ablations, noted, train_every
from bench.tables import markdown
from fleet_tune.runs.transfer.pretrained import BUILTIN_PATHS, read_model
from policies.search.methods import Method
from policies.search.search import TaskSearch

TASKS = ("matmul_add_relu", "conv2d_add_relu 56x56x64")
PEER = "ansor"


def variants() -> dict[str, Method]:
    """Return the methods of tables 7 and 13, and MoA-Pruner with the training frequency of section 6.3."""
    others = {
        name if "table 13" in name else f"{PRETRAINED}, {name}": each
        for name, each in ablations()[PRETRAINED].items()
        if "table 13" in name or "section 6.3" in name
    }
    return {name: method_named(name) for name in (PEER, "pruner", PRETRAINED)} | others


@dataclass(frozen=True)
class Cost:
    """Seconds of a search, for all of its trials."""

    proposing: float
    training: float
    others: float
    """Seconds of building and measuring."""

    @property
    def secs(self) -> float:
        return self.proposing + self.training + self.others


COSTS: Kind[Cost] = Kind("cost", asdict, lambda line: Cost(line["proposing"], line["training"], line["others"]))


def search_cost(task: RecordedTask, method: Method, trials: int, seed: int, every: int = 1) -> Cost:
    """Return the seconds that ``trials`` trials of ``method`` take in the whole space of the task, in the rounds of the
    method. Its model is trained once in ``every`` rounds."""
    data = task.data
    rng = np.random.default_rng([seed, *data.task.id.encode()])
    prior = read_model(BUILTIN_PATHS[method.starts_from])[0] if method.starts_from else None
    search = TaskSearch(data.sketches, data.task.workload.flop, data.abstraction, method, rng, None, prior)
    told = observations(data, np.random.default_rng(seed).permutation(len(data))[:trials])
    proposing = training = 0.0
    for at in range(0, len(told), method.batch):
        began = time.process_time()
        proposals = search.propose(min(method.batch, len(told) - at))
        proposing += time.process_time() - began
        search.release(proposals)
        began = time.process_time()
        search.observe(told[at : at + method.batch])
        if trains_after(search.observed, method.batch, every):
            search.use_model(search.train(seed))
        training += time.process_time() - began
    return Cost(proposing, training, sum(each.trial_secs for each in told))


def _one(method: Method, at: int, trials: int, every: int) -> Cost:
    return search_cost(replay_pool.tasks[at], method, trials, 0, every)


def _call(name: str, method: Method, at: int, task: str, trials: int) -> Call[Cost]:
    every = train_every(name)
    return Call(method, noted(f"{trials} trials of {task}", every), 0, _one, (method, at, trials, every))


def run(dataset: Path, tasks: Sequence[str], trials: int, jobs: int, parts: Path | None = None) -> BenchResult:
    """Return the seconds of ``trials`` trials of each task, by method and part. If a task has fewer candidates, their
    number is the number of trials of all tasks.

    ``parts``: a file that caches runs.
    """
    measured = read(dataset)
    names = labels(measured)
    chosen = pick(names, tasks)
    began = time.perf_counter()
    count = min(trials, *(len(measured[at]) for at in chosen))
    calls = {
        (name, at): _call(name, method, at, names[at], count) for at in chosen for name, method in variants().items()
    }
    made = played(dataset, jobs, RunCache(parts, dataset, COSTS, cache_code(parts, __name__)), calls)
    costs = {name: {names[at]: asdict(made[name, at]) for at in chosen} for name in variants()}
    details: dict[str, Any] = {
        "tasks": [names[at] for at in chosen],
        "trials": count,
        "costs": costs,
        "secs": {name: sum(made[name, at].secs for at in chosen) for name in variants()},
        "dataset": dataset.name,
        "elapsed_secs": time.perf_counter() - began,
    }
    ours, peer = details["secs"]["pruner"], details["secs"][PEER]
    return BenchResult("compile-time", ours, peer, peer / ours, "s", details)


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    peer = details["secs"][PEER]
    rows = [
        (
            name,
            *(f"{sum(cost[part] for cost in by_task.values()):.1f}" for part in ("proposing", "training", "others")),
            f"{details['secs'][name]:.0f}",
            f"{details['secs'][name] / peer:.3f}",
        )
        for name, by_task in details["costs"].items()
    ]
    what = f"s for {details['trials']} trials of each of {len(details['tasks'])} tasks"
    return markdown((what, "proposing", "training", "building and measuring", "in all", f"of {PEER}'s"), rows)


BENCHMARK = Benchmark(
    name="compile-time",
    help="Pruner's tables 7 and 13: what tuning takes by method, search, building and measuring.",
    options=(
        options.dataset(),
        options.tasks("a matmul and a 3x3 convolution", TASKS),
        options.count("--trials", 200, "Of each task."),
        options.run_cache(),
        options.jobs(),
    ),
    short=("--task", "matmul_add_relu", "--trials", "40"),
    run=run,
    table=table,
)
