"""Our draft on the candidates of a dataset, in a process of its own on one core.

``python -m bench.drafts.draft_process --dataset FILE --seeds 20 --cpu 0`` prints one JSON line. It has the candidates
that the draft scores per second, with the analyzer alone and calibrated; for every task, scorer and seed the latency of
the best candidate in the share that the scorer ranks first (by default an eighth); and points for a plot of predicted
and measured times.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from bench.datasets import Rows, best_of_share, observations, read, split, with_enough
from bench.processes import die_with_parent
from fleet_tune.base.task_data import TaskData
from policies.search.draft import DraftSettings, random_generation, scores
from policies.search.methods.fleet import FLEET
from policies.search.prediction import Predictor
from policies.search.spaces import evaluated
from policies.search.trainer import Trainer
from policies.search.training_table import TrainingTable
from policies.space.pools import Pool
from policies.space.sampling import sample

Floats = NDArray[np.float64]

SCORERS = ("analyzer", "calibrated", "with-model")
"""The analyzer as it is; calibrated by the records; and the model of ``fleet``, which starts from the analyzer and is
trained on the records."""
SCORED = 16384
"""Candidates per call when the speed is measured."""
POINTS = 60
"""Candidates of each task whose predictions are kept for a plot."""
_REPEATS = 7
assert FLEET.training is not None
_TRAINING = FLEET.training


def calibrated_predictor(data: TaskData, records: Rows) -> Predictor:
    """Return the draft's predictor, calibrated by the ``records``."""
    return Predictor(_table(data, records), data.task.workload.flop, analyzer=True, alone=_TRAINING.alone)


def train(data: TaskData, records: Rows, predictor: Predictor, seed: int) -> None:
    """Train the model of ``fleet`` on the ``records`` and let the predictor use it."""
    predictor.use_model(Trainer(_TRAINING).train({"": _table(data, records).training_set()}, seed))


def _table(data: TaskData, records: Rows) -> TrainingTable:
    table = TrainingTable(data.sketches, data.abstraction, _TRAINING.views)
    table.observe(observations(data, records))
    return table


class Scorer:
    """Scores the candidates of one task. The analyzer evaluates all of them only once."""

    def __init__(self, data: TaskData) -> None:
        self._data = data
        self.drafts = [
            evaluated(Pool(sketch, matrix), data.abstraction)
            for sketch, matrix in zip(data.sketches, data.decisions, strict=True)
        ]

    def scores(self, rows: Rows, predictor: Predictor | None) -> Floats:
        """Return the predicted log seconds of candidates, shape ``(len(rows),)``; infinite if the analyzer rules the
        candidate out.

        Without a predictor they are the analyzer's own, and infinite for a sketch that is not described.
        """
        log_secs = np.full(len(rows), np.inf)
        for at, drafted in enumerate(self.drafts):
            mine = np.flatnonzero(self._data.sketch_of[rows] == at)
            taken = drafted.take(self._data.row_of[rows[mine]])
            predicted = taken.analytic_log_secs if predictor is None else predictor.predicted(at, taken).mean
            log_secs[mine] = np.where(np.isfinite(taken.log_secs), predicted, np.inf)
        return np.where(np.isnan(log_secs), np.inf, log_secs)


def quality(data: TaskData, seeds: int, calibration: int, share: int, limit: int | None) -> dict[str, list[float]]:
    """Return by scorer, for every seed, the lowest latency (seconds) in the share of the explored set that the scorer
    keeps; ``ideal``: the lowest in the whole explored set."""
    best: dict[str, list[float]] = {name: [] for name in (*SCORERS, "ideal")}
    scorer = Scorer(data)
    for seed in range(seeds):
        records, explored = split(data, seed, calibration, limit)
        costs = data.cost_secs[explored]
        best["ideal"].append(float(costs.min()))
        best["analyzer"].append(best_of_share(scorer.scores(explored, None), costs, share))
        predictor = calibrated_predictor(data, records)
        best["calibrated"].append(best_of_share(scorer.scores(explored, predictor), costs, share))
        train(data, records, predictor, seed)
        best["with-model"].append(best_of_share(scorer.scores(explored, predictor), costs, share))
    return best


def points(data: TaskData, calibration: int, limit: int | None) -> list[list[float]]:
    """Return ``[predicted, measured]`` log seconds of some candidates, predicted after the first seed's calibration."""
    records, explored = split(data, 0, calibration, limit)
    explored = explored[data.ok[explored]]
    explored = np.random.default_rng(0).permutation(explored)[:POINTS]
    predicted = Scorer(data).scores(explored, calibrated_predictor(data, records))
    pairs = zip(predicted.tolist(), np.log(data.cost_secs[explored]).tolist(), strict=True)
    return [[round(guess, 3), round(truth, 3)] for guess, truth in pairs if math.isfinite(guess)]


def speed(data: TaskData, calibration: int) -> dict[str, float]:
    """Return the candidates per second that the draft scores with the analyzer and with the calibrated fitness.

    Each is the median of several calls on random candidates of every described sketch of the task, ``SCORED`` in a
    call. The times are CPU seconds, which other processes do not lengthen. The figures ``..._population`` are for
    calls as in a generation of the draft: as many candidates, and of as few variants. Empty if no sketch is described.
    """
    predictor = calibrated_predictor(data, split(data, 0, calibration)[0])
    rng = np.random.default_rng(0)
    secs: dict[str, float] = {}
    described = [sketch for sketch in data.sketches if sketch.described]
    for label, count in (("", SCORED), ("_population", DraftSettings().population)):
        for sketch in described:
            matrix = random_generation(sketch, DraftSettings(), rng) if label else sample(sketch, count, rng)
            device, fitness = data.abstraction, predictor.fitness(sketch.index)
            calls: dict[str, Callable[[], Any]] = {
                "analyzer": lambda s=sketch, m=matrix, d=device: scores(s, m, d),  # type: ignore[misc]
                "calibrated": lambda s=sketch, m=matrix, d=device, f=fitness: scores(s, m, d, f),  # type: ignore[misc]
            }
            for name, call in calls.items():
                secs[name + label] = secs.get(name + label, 0.0) + _median_cpu_secs(call)
    counts = {"": SCORED * len(described), "_population": DraftSettings().population * len(described)}
    return {name: counts["_population" if "_" in name else ""] / taken for name, taken in secs.items()}


def _median_cpu_secs(call: Callable[[], Any]) -> float:
    call()
    taken = []
    for _ in range(_REPEATS):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


@click.command()
@click.option("--dataset", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--seeds", type=click.IntRange(min=1), required=True)
@click.option("--calibration", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--share", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Candidates of each task.")
@click.option("--cpu", type=int, required=True, help="The only CPU that this process may use.")
def main(dataset: Path, seeds: int, calibration: int, share: int, limit: int | None, cpu: int) -> None:
    """Print the figures as one line of JSON, the last line of output."""
    die_with_parent()
    os.sched_setaffinity(0, {cpu})
    everything = read(dataset)
    measured = [everything[at] for at in with_enough(everything, calibration, limit)]
    figures = {
        "speed": [speed(data, calibration) for data in measured],
        "best_secs": [quality(data, seeds, calibration, share, limit) for data in measured],
        "points": [points(data, calibration, limit) for data in measured],
    }
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
