"""MetaSchedule's cost model in the same comparison as ours: trained on records of one task, or of other tasks.

``python -m bench.peers.per_store_models --dataset FILE --other-tasks FILE ...`` prints one JSON line. MetaSchedule's
XGBModel is used as in :mod:`bench.peers.per_store`: with its own features, which are extracted once and kept among the
temporary files, and with its default settings. The one exception is that its predictions are used from the first sample
on.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from bench.datasets import Rows, first, read
from bench.models.ranking import Ranked, parts
from bench.peers.per_store import Features, PrecomputedFeatures, all_features, extract, ranking
from bench.processes import die_with_parent
from devices.sketches.spaces import parse_module
from devices.targets import parse_target
from fleet_tune.base.task_data import TaskData

EXTRACTED = 64
"""Number of candidates whose feature extraction is timed."""
PREDICTED = 512
"""Number of candidates whose prediction is timed, as for our model."""


def in_domain(
    path: Path, features: list[Features], at: int, counts: tuple[int, ...], seeds: tuple[int, ...], limit: int | None
) -> dict[str, list[list[float]]]:
    """Return the figures of models that are trained and tested on one task, the dataset's ``at``-th.

    For each number of records in ``counts`` (0 for all) the result has one row for each seed: the quality of the
    ranking of the test candidates (:meth:`Ranked.listed`), then the seconds of the training. ``limit``: use the first
    so many candidates of the task; None for all.
    """
    data = first(read(path)[at], limit)
    figures: dict[str, list[list[float]]] = {str(count): [] for count in counts}
    for seed in seeds:
        learn, test = parts(data, seed)
        for count in counts:
            scores, secs = ranking(data, features[at], np.sort(learn[: count or None]), test, cores=1)
            figures[str(count)].append([*Ranked.of(scores, data.cost_secs[test]).listed(), secs])
    return figures


class _Together:
    """One XGBModel that several tasks share."""

    def __init__(self) -> None:
        self._laid_out: Features = []
        extractor = PrecomputedFeatures(self._laid_out)
        self.model = ms.cost_model.XGBModel(extractor=extractor, num_warmup_samples=0, num_tuning_cores=1)

    def learn(self, data: TaskData, features: Features, rows: Rows) -> None:
        results = [
            ms.runner.RunnerResult([float(cost)], None) if np.isfinite(cost) else ms.runner.RunnerResult(None, "failed")
            for cost in data.cost_secs[rows]
        ]
        context, stand_in = _context(data)
        self._laid_out[:] = [features[row] for row in rows]
        self.model.update(context, [stand_in] * len(rows), results)

    def scores(self, data: TaskData, features: Features) -> Any:
        possible = np.array([len(each) > 0 for each in features])
        context, stand_in = _context(data)
        self._laid_out[:] = [each for each in features if len(each)]
        scores = np.full(len(features), np.inf)
        scores[possible] = -self.model.predict(context, [stand_in] * len(self._laid_out))
        return scores


def _context(data: TaskData) -> tuple[Any, Any]:
    module = parse_module(data.task.workload.module)
    context = ms.TuneContext(module, target=parse_target(data.task.device_class.target), num_threads=1)
    return context, ms.search_strategy.MeasureCandidate(Schedule(module), [])


def across(
    path: Path, other_tasks: Path, features: list[Features], theirs: list[Features], count: int, seed: int, limit: int
) -> tuple[list[list[float]], float]:
    """Train on ``count`` random records (0 for all) of each task of the dataset at ``path``, and rank the candidates of
    each task of ``other_tasks``. Return the quality of each ranking (:meth:`Ranked.listed`) and the seconds of the
    training.

    ``features``, ``theirs``: features of the first candidates of each task of the first and of the second dataset; the
    candidates that have features are ranked. ``limit``: the records are among the first so many candidates of a task.
    """
    together = _Together()
    began = time.perf_counter()
    for data, task_features in zip(read(path), features, strict=True):
        rows = np.random.default_rng([seed, 6]).permutation(min(limit, len(data)))[: count or None]
        together.learn(data, task_features, rows)
    secs = time.perf_counter() - began
    figures = [
        Ranked.of(together.scores(data, task_features), data.cost_secs[: len(task_features)]).listed()
        for data, task_features in zip(read(other_tasks), theirs, strict=True)
    ]
    return figures, secs


def prediction_secs(path: Path, features: list[Features]) -> float:
    """Return the CPU seconds that MetaSchedule takes to extract the features of :data:`PREDICTED` candidates and to
    predict their scores: the median over the tasks. The time of the extraction is scaled up from :data:`EXTRACTED`
    candidates."""
    taken = []
    for at, data in enumerate(read(path)):
        rows = np.arange(min(len(features[at]), 64))
        began = time.process_time()
        extract(path, at, tuple(range(EXTRACTED)))
        first = time.process_time() - began
        began = time.process_time()
        extract(path, at, tuple(range(EXTRACTED)))  # now without the set-up of the task
        secs = min(first, time.process_time() - began) * PREDICTED / EXTRACTED
        together = _Together()
        together.learn(data, features[at], rows)
        repeated = [features[at][row % len(features[at])] for row in range(PREDICTED)]
        began = time.process_time()
        together.scores(data, repeated)
        taken.append(secs + time.process_time() - began)
    return float(np.median(taken))


@click.command()
@click.option("--dataset", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--other-tasks", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--seeds", type=click.IntRange(min=1), required=True)
@click.option("--count", "counts", type=int, multiple=True, required=True)
@click.option("--limit", type=click.IntRange(min=1), required=True, help="Candidates of each task.")
@click.option("--jobs", type=click.IntRange(min=1), required=True)
def main(dataset: Path, other_tasks: Path, seeds: int, counts: tuple[int, ...], limit: int, jobs: int) -> None:
    """Print the figures as one line of JSON, the last line of output."""
    die_with_parent()
    tasks, others = read(dataset), read(other_tasks)
    features = all_features(dataset, tasks, limit, jobs)
    theirs = all_features(other_tasks, others, limit, jobs)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=die_with_parent) as pool:
        seed_list = tuple(range(seeds))
        within = [pool.submit(in_domain, dataset, features, at, counts, seed_list, limit) for at in range(len(tasks))]
        between = {
            count: [
                pool.submit(across, dataset, other_tasks, features, theirs, count, seed, limit) for seed in seed_list
            ]
            for count in counts
        }
        figures: dict[str, Any] = {
            "in_domain": [waiting.result() for waiting in within],
            "across": {str(count): [waiting.result() for waiting in each] for count, each in between.items()},
        }
    figures["prediction_secs"] = prediction_secs(dataset, features)
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
