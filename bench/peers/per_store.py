"""MetaSchedule's cost model on the candidates of a dataset: its features, its training, its ranking.

``python -m bench.peers.per_store --dataset FILE --seeds 20`` prints one JSON line. It has for every seed and task the
run time of the best candidate in the eighth that MetaSchedule's XGBModel ranks first, after training on the seed's 64
records. The features are MetaSchedule's PerStoreFeature of the scheduled programs. They are extracted once, in
``--jobs`` processes, and kept in a temporary folder. XGBModel has its default settings, except that its predictions are
used from the first sample on. By default it ranks at random until it has seen 100 samples.
"""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from bench.datasets import Rows, best_of_share, read, split, with_enough
from bench.peers.candidates import Scheduler
from bench.processes import die_with_parent
from devices.sketches.spaces import parse_module
from devices.targets import parse_target
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.task_data import Dataset, TaskData

CHUNK = 50
"""Number of candidates that a process schedules at a time."""

Features = list[NDArray[np.float32]]
"""Features of each candidate, shape ``(stores, 164)``; ``(0, 164)`` if it cannot be scheduled."""


@lru_cache(maxsize=1)
def _scheduler(dataset: Path, at: int) -> tuple[Scheduler, ms.TuneContext]:
    data = read(dataset)[at]
    scheduler = Scheduler(data)
    target = parse_target(data.task.device_class.target)
    return scheduler, ms.TuneContext(scheduler.module, target=target, num_threads=1)


def extract(dataset: Path, at: int, rows: tuple[int, ...]) -> Features:
    """Return MetaSchedule's per-store features of the candidates ``rows`` of the dataset's ``at``-th task, which are
    scheduled with MetaSchedule's post-processors."""
    scheduler, context = _scheduler(dataset, at)
    extractor = ms.feature_extractor.PerStoreFeature()
    extracted: Features = []
    for row in rows:
        candidate = scheduler.candidate(row)
        if candidate is None:
            extracted.append(np.empty((0, extractor.feature_vector_length), dtype=np.float32))
            continue
        (features,) = extractor.extract_from(context, [candidate])
        extracted.append(features.numpy().astype(np.float32))
    return extracted


def all_features(path: Path, dataset: Dataset, limit: int, jobs: int) -> list[Features]:
    """Return the features of the first ``limit`` candidates of every task. They are extracted in ``jobs`` processes
    unless the temporary folder has them."""
    content = _candidates_hash(dataset)
    folder = Path(tempfile.gettempdir()) / "fleet-tune-bench"
    folder.mkdir(exist_ok=True)
    stored = folder / f"per-store-{content}-{limit}.npz"
    if not stored.exists():
        pieces = [
            (at, tuple(range(start, min(start + CHUNK, limit, len(data)))))
            for at, data in enumerate(dataset)
            for start in range(0, min(limit, len(data)), CHUNK)
        ]
        arrays: dict[str, Any] = {}
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=die_with_parent) as pool:
            waiting = [(at, pool.submit(extract, path, at, rows)) for at, rows in pieces]
            for at in range(len(dataset)):
                features = [each for owner, future in waiting if owner == at for each in future.result()]
                arrays[f"rows{at}"] = np.concatenate(features)
                arrays[f"count{at}"] = np.array([len(each) for each in features])
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)
        write_atomically(stored, packed.getvalue())
    with np.load(stored) as loaded:
        return [np.split(loaded[f"rows{at}"], np.cumsum(loaded[f"count{at}"])[:-1]) for at in range(len(dataset))]


def _candidates_hash(dataset: Dataset) -> str:
    """Hash the tasks and candidates of a dataset, without their measurements, and TVM's version."""
    hasher = hashlib.blake2b(tvm.__version__.encode(), digest_size=8)
    for data in dataset:
        hasher.update(data.task.id.encode() + data.sketch_of.tobytes())
        for sketch, matrix in zip(data.sketches, data.decisions, strict=True):
            hasher.update(sketch.id.encode() + matrix.tobytes())
    return hasher.hexdigest()


@derived_object
class PrecomputedFeatures(ms.feature_extractor.PyFeatureExtractor):  # type: ignore[misc]
    """Returns the features that its caller has put into ``laid_out``: those of the candidates of the next call."""

    def __init__(self, laid_out: Features) -> None:
        super().__init__()
        self.laid_out = laid_out

    def extract_from(self, _context: Any, _candidates: Any) -> list[Any]:
        return [tvm.runtime.tensor(each) for each in self.laid_out]


def ranking(data: TaskData, features: Features, records: Rows, explored: Rows, cores: int) -> tuple[Any, float]:
    """Train a model on the ``records`` and return its scores of the ``explored`` candidates (lower is better), and the
    seconds of the training. Candidates that cannot be scheduled score infinity, since MetaSchedule's search discards
    them."""
    module = parse_module(data.task.workload.module)
    context = ms.TuneContext(module, target=parse_target(data.task.device_class.target), num_threads=1)
    laid_out: Features = []
    model = ms.cost_model.XGBModel(
        extractor=PrecomputedFeatures(laid_out), num_warmup_samples=0, num_tuning_cores=cores
    )
    stand_in = ms.search_strategy.MeasureCandidate(Schedule(module), [])
    results = [
        ms.runner.RunnerResult([float(cost)], None) if np.isfinite(cost) else ms.runner.RunnerResult(None, "failed")
        for cost in data.cost_secs[records]
    ]
    laid_out[:] = [features[row] for row in records]
    began = time.perf_counter()
    model.update(context, [stand_in] * len(records), results)
    train_secs = time.perf_counter() - began
    possible = np.array([len(features[row]) > 0 for row in explored])
    laid_out[:] = [features[row] for row in explored[possible]]
    scores = np.full(len(explored), np.inf)
    scores[possible] = -model.predict(context, [stand_in] * len(laid_out))
    return scores, train_secs


def best_by_seed(
    path: Path, features: list[Features], seeds: tuple[int, ...], calibration: int, share: int, limit: int
) -> tuple[list[list[float]], list[float]]:
    """Return for each seed the run times of the best candidates in the first ``1 / share`` of the ranking, one for each
    task with enough candidates; and the seconds of every training.

    ``calibration``: number of records to train on. ``limit``: use the first so many candidates of each task.
    """
    dataset = read(path)
    tasks = with_enough(dataset, calibration, limit)
    best, trainings = [], []
    for seed in seeds:
        row = []
        for at, (data, task_features) in enumerate(zip(dataset, features, strict=True)):
            if at not in tasks:
                continue
            records, explored = split(data, seed, calibration, limit)
            scores, secs = ranking(data, task_features, records, explored, cores=1)
            row.append(best_of_share(scores, data.cost_secs[explored], share))
            trainings.append(secs)
        best.append(row)
    return best, trainings


@click.command()
@click.option("--dataset", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--seeds", type=click.IntRange(min=1), required=True)
@click.option("--calibration", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--share", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--limit", type=click.IntRange(min=1), required=True, help="Candidates of each task.")
@click.option("--jobs", type=click.IntRange(min=1), required=True)
def main(dataset: Path, seeds: int, calibration: int, share: int, limit: int, jobs: int) -> None:
    """Print the figures as one line of JSON, the last line of output."""
    die_with_parent()
    began = time.perf_counter()
    features = all_features(dataset, read(dataset), limit, jobs)
    extract_secs = time.perf_counter() - began
    spawn = multiprocessing.get_context("spawn")
    best: list[list[float]] = []
    trainings: list[float] = []
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=die_with_parent) as pool:
        parts = [tuple(range(start, seeds, jobs)) for start in range(min(jobs, seeds))]
        waiting = [pool.submit(best_by_seed, dataset, features, part, calibration, share, limit) for part in parts]
        by_seed: dict[int, list[float]] = {}
        for part, future in zip(parts, waiting, strict=True):
            rows, secs = future.result()
            by_seed.update(zip(part, rows, strict=True))
            trainings.extend(secs)
        best = [by_seed[seed] for seed in range(seeds)]
    figures = {"best_secs": best, "extract_secs": extract_secs, "train_secs": statistics.median(trainings)}
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
