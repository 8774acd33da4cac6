"""Momentum adaptation against fine-tuning and against training from scratch, on another device class.

PaCM is pre-trained on the tasks of one device class. Then it meets the records of the same tasks on another one, a few
of every task at a time, as a learner does: after each update the candidates that it has not seen are ranked. All three
see the same records in the same order.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench import options
from bench.benchmark import Benchmark
from bench.datasets import OTHER_CLASS, read
from bench.machine import bench_env
from bench.models.laboratory import load_model
from bench.processes import die_with_parent
from bench.result import BenchResult
from bench.tables import markdown, median_and_range
from fleet_tune.base.task_data import TaskData
from policies.arrays import Floats
from policies.cost_models.architectures import PacmModel
from policies.cost_models.knowledge import general_examples
from policies.cost_models.moa import MOMENTUM, MomentumModel, copied
from policies.cost_models.neural import NeuralSettings
from policies.cost_models.protocol import CostModel, targets
from policies.cost_models.rank_quality import rank_correlation, top_k
from policies.features.table import FeatureTable

ARMS = ("moa", "fine-tune", "scratch")
PRETRAINED = "pre-trained, never updated"
SETTINGS = NeuralSettings(members=1, epochs=12, update_epochs=15)
"""One network instead of an ensemble, and fewer passes over the records of the source: minutes instead of hours."""
SHOWN = (1, 2, 4, 8)
"""Updates after which the figures are taken."""


class Target:
    """A task of the target class: features and costs of its candidates, in one order."""

    def __init__(self, data: TaskData, views: Sequence[str]) -> None:
        examples = general_examples([data], views)
        assert examples is not None
        self.features: FeatureTable = examples.features
        order = np.concatenate([data.rows(at) for at in range(len(data.sketches))])
        self.cost_secs: Floats = data.cost_secs[order]
        self.log_secs: Floats = targets(self.cost_secs)


def pretrained(source: Path, seed: int) -> PacmModel:
    """PaCM trained on all tasks of a dataset."""
    model = PacmModel(seed, SETTINGS)
    examples = general_examples(read(source), model.views)
    assert examples is not None
    model.fit(examples.features, examples.log_secs, examples.groups)
    return model


def quality(model: CostModel, tasks: Sequence[Target], unseen: Sequence[NDArray[np.intp]]) -> dict[str, float]:
    """Means over the tasks of Top-1, Top-5 and rank correlation among the candidates that were not trained on."""
    top_1, top_5, ranks = [], [], []
    for task, rows in zip(tasks, unseen, strict=True):
        predicted, _ = model.predict(task.features.take(rows))
        top_1.append(top_k(predicted, task.cost_secs[rows], 1))
        top_5.append(top_k(predicted, task.cost_secs[rows], 5))
        ranks.append(rank_correlation(predicted, task.log_secs[rows]))
    return {"top_1": float(np.mean(top_1)), "top_5": float(np.mean(top_5)), "rank": float(np.nanmean(ranks))}


def adapt(arm: str, base: bytes, tasks: Sequence[Target], seed: int, share: int) -> dict[str, dict[str, float]]:
    """The figures of one run after each number of updates of :data:`SHOWN`; ``share``: records of a task an update."""
    pretrained = load_model(base).network
    assert pretrained is not None
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(task.cost_secs)) for task in tasks]
    model: CostModel
    if arm == "moa":
        model = MomentumModel(copied(pretrained), True, MOMENTUM)
    elif arm == "fine-tune":
        model = copied(pretrained)
    else:
        model = PacmModel(seed, SETTINGS)
    figures: dict[str, dict[str, float]] = {}
    for number in range(1, SHOWN[-1] + 1):
        rows = [order[: number * share] for order in orders]
        tables = [task.features.take(chosen) for task, chosen in zip(tasks, rows, strict=True)]
        log_secs = [task.log_secs[chosen] for task, chosen in zip(tasks, rows, strict=True)]
        groups = [np.full(len(chosen), at, dtype=np.int64) for at, chosen in enumerate(rows)]
        model.update(FeatureTable.concatenate(tables), np.concatenate(log_secs), np.concatenate(groups))
        if number in SHOWN:
            figures[str(number)] = quality(model, tasks, [order[number * share :] for order in orders])
    return figures


_target: list[Target] = []


def _start(path: Path) -> None:
    die_with_parent()
    _target.extend(Target(data, PacmModel.views) for data in read(path) if data.ok.any())


def _one(arm: str, base: bytes, seed: int, share: int) -> dict[str, dict[str, float]]:
    return adapt(arm, base, _target, seed, share)


def run(dataset: Path, target: Path, seeds: int, share: int, jobs: int) -> BenchResult:
    """Medians over the seeds of every arm after each number of updates of :data:`SHOWN`, and of the model as it was."""
    os.environ.update(bench_env(1))
    began = time.perf_counter()
    base = pretrained(dataset, 0)
    trained_secs = time.perf_counter() - began
    tasks = [Target(data, base.views) for data in read(target) if data.ok.any()]
    before = quality(base, tasks, [np.arange(len(task.cost_secs)) for task in tasks])
    saved = base.save()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_start, initargs=(target,)) as pool:
        waiting = {(arm, seed): pool.submit(_one, arm, saved, seed, share) for seed in range(seeds) for arm in ARMS}
        done = {key: future.result() for key, future in waiting.items()}
    arms: dict[str, Any] = {
        arm: {
            str(number): {
                figure: _spread([done[arm, seed][str(number)][figure] for seed in range(seeds)])
                for figure in ("top_1", "top_5", "rank")
            }
            for number in SHOWN
        }
        for arm in ARMS
    }
    details = {
        "source": dataset.name,
        "target": target.name,
        "seeds": seeds,
        "records_an_update": share * len(tasks),
        "tasks": len(tasks),
        "arms": arms,
        "before": before,
        "pretraining_secs": trained_secs,
        "elapsed_secs": time.perf_counter() - began,
        "momentum": MOMENTUM,
    }
    last = str(SHOWN[-1])
    ours, peer = (arms[arm][last]["top_1"]["median"] for arm in ("moa", "fine-tune"))
    return BenchResult("moa", ours, peer, ours / peer, "Top-1", details)


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "min": min(values), "max": max(values)}


def table(result: Mapping[str, Any]) -> str:
    details = result["details"]
    names = {"moa": "momentum adaptation", "fine-tune": "fine-tuning", "scratch": "from scratch"}
    numbers = list(details["arms"]["moa"])
    before = details["before"]
    parts = []
    for figure, shown in (("top_1", "Top-1"), ("top_5", "Top-5"), ("rank", "rank correlation")):
        rows = [
            (name, *(median_and_range(details["arms"][arm][number][figure], digits=3) for number in numbers))
            for arm, name in names.items()
        ]
        records = [f"{int(number) * details['records_an_update']} records" for number in numbers]
        parts.append(markdown((f"{shown}; pre-trained and never updated: {before[figure]:.3f}", *records), rows))
    return "\n\n".join(parts)


BENCHMARK = Benchmark(
    name="moa",
    help="Momentum adaptation to another device class, against fine-tuning and training from scratch.",
    options=(
        options.dataset(),
        click.Option(
            ["--target"],
            type=click.Path(path_type=Path),
            default=OTHER_CLASS,
            help="Dataset of the other class; else bench/data's.",
        ),
        options.count("--seeds", 10),
        options.count("--share", 4, "Records of a task an update."),
        options.jobs(),
    ),
    short=("--seeds", "1"),
    run=run,
    table=table,
)
