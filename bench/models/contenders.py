"""Our cost models on the candidates of a dataset: in-domain on one task, or across all tasks of another dataset.

The functions run in worker processes of :mod:`bench.models.cost_model`, so they return plain values.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from bench.datasets import Rows, first, read
from bench.drafts.draft_process import Scorer, calibrated_predictor, train
from bench.models.laboratory.registry import BOOSTED_RANK, FOREST, MLP, TLP, TREE_GRU
from bench.models.ranking import Floats, Ranked, parts
from fleet_tune.base.task_data import Dataset, TaskData
from policies.cost_models.protocol import CostModel, targets
from policies.cost_models.registry import BOOSTED, BOOSTED_INVARIANT, PACM, CostModelEntry
from policies.features.table import FeatureTable, joint_layout
from policies.features.views import VIEW_SHAPES, describe, table
from policies.space.sampling import sample

PREDICTED = 512
"""Candidates whose prediction is timed."""
VIEWS = tuple(VIEW_SHAPES)


@dataclass(frozen=True)
class Contender:
    """A model of the comparison."""

    label: str
    """Name in the tables."""
    model: CostModelEntry | None = None
    """Entry of the registry; None if nothing is learned."""
    from_analyzer: bool = False
    """True if it starts from the analyzer's prediction."""
    pretrained: bool = False
    """True if its training starts from a model that was trained on the other dataset."""

    @property
    def across(self) -> bool:
        """True if it can predict tasks of which it has no records."""
        return not self.pretrained and (self.label == ANALYZER or (self.model is not None and self.model.transfers))


DEFAULT = "default"
ANALYZER = "analyzer"
CONTENDERS: tuple[Contender, ...] = (
    Contender(DEFAULT),
    Contender("calibrated"),
    Contender(ANALYZER),
    Contender("boosted", BOOSTED, from_analyzer=True),
    Contender("boosted-rank", BOOSTED_RANK),
    Contender("boosted-invariant", BOOSTED_INVARIANT, from_analyzer=True),
    Contender("forest", FOREST),
    Contender("tree-gru", TREE_GRU),
    Contender("mlp", MLP),
    Contender("tlp", TLP),
    Contender("pacm", PACM),
    Contender("pacm from the analyzer", PACM, from_analyzer=True),
    Contender("pacm pre-trained", PACM, from_analyzer=True, pretrained=True),
)
"""``default`` is the model of the method ``fleet``: a Gaussian process that starts from the analyzer."""


def contenders(labels: tuple[str, ...]) -> tuple[Contender, ...]:
    """Return the contenders with these labels, in the order of the comparison."""
    return tuple(each for each in CONTENDERS if each.label in labels)


class TaskFeatures:
    """Features of a task's candidates, as cost models read them, in the order of the dataset."""

    def __init__(self, data: TaskData) -> None:
        self.data = data
        self.layout = joint_layout(data.sketches, data.abstraction)
        pieces = []
        for at, drafted in enumerate(Scorer(data).drafts):
            symbolic = self.layout.place(at, drafted.features)
            pieces.append(table(symbolic, data.sketches[at], data.decisions[at], data.abstraction, VIEWS))
        together = FeatureTable.concatenate(pieces)
        order = np.concatenate([data.rows(at) for at in range(len(data.sketches))])
        self.features = together.take(np.argsort(order))

    def only(self, names: tuple[str, ...]) -> FeatureTable:
        """Return the views of these names."""
        return FeatureTable({name: self.features.view(name) for name in names})


@lru_cache(maxsize=16)
def _task_features(path: Path, at: int, limit: int | None) -> TaskFeatures:
    return TaskFeatures(first(_dataset(path)[at], limit))


@lru_cache(maxsize=2)
def _dataset(path: Path) -> Dataset:
    return read(path)


def _all_task_features(path: Path, limit: int | None) -> list[TaskFeatures]:
    return [_task_features(path, at, limit) for at in range(len(_dataset(path)))]


def _records(task: TaskFeatures, rows: Rows, model: CostModel) -> tuple[FeatureTable, Floats]:
    return task.only(model.views).take(rows), targets(task.data.cost_secs[rows]).astype(np.float64)


def in_domain(
    path: Path,
    at: int,
    labels: tuple[str, ...],
    counts: tuple[int, ...],
    seed: int,
    limit: int | None,
    base: bytes | None,
) -> dict[str, dict[str, list[float]]]:
    """Train and test models on one task with one seed.

    Return for each label and number of records the quality of the model's ranking of the test candidates
    (:meth:`Ranked.listed`), followed by the seconds of its training.

    Args:
        path: file of the dataset.
        at: position of the task.
        labels: labels of the contenders.
        counts: numbers of records to learn from; 0: all.
        seed: seed of the split and of the models.
        limit: largest number of candidates; None: all.
        base: bytes of the model from which the pre-trained contender continues.
    """
    task = _task_features(path, at, limit)
    data = task.data
    learn, test = parts(data, seed)
    scorer = Scorer(data)
    figures: dict[str, dict[str, list[float]]] = {}
    for contender in contenders(labels):
        by_count = figures.setdefault(contender.label, {})
        for count in counts:
            rows = np.sort(learn[: count or None])
            began = time.perf_counter()
            if contender.model is None:
                predictor = None if contender.label == ANALYZER else calibrated_predictor(data, rows)
                if contender.label == DEFAULT and predictor is not None:
                    train(data, rows, predictor, seed)
                secs = time.perf_counter() - began
                scores = scorer.scores(test, predictor)
            else:
                model = _untrained(contender, seed, task, base)
                features, logs = _records(task, rows, model)
                model.update(features, logs, np.zeros(len(rows), dtype=np.int64))
                secs = time.perf_counter() - began
                scores = _scores(model, task.only(model.views).take(test))
            by_count[str(count)] = [*Ranked.of(scores, data.cost_secs[test]).listed(), secs]
    return figures


def _scores(model: CostModel, features: FeatureTable) -> Floats:
    return model.predict(features)[0].astype(np.float64)


def _untrained(contender: Contender, seed: int, task: TaskFeatures, base: bytes | None) -> CostModel:
    from bench.models.laboratory import load_model

    if contender.pretrained:
        if base is None:
            raise ValueError("a pre-trained contender needs the model that it goes on from")
        return load_model(base)
    assert contender.model is not None
    return contender.model.make(seed, task.layout.offset_column if contender.from_analyzer else None)


def pretrain(path: Path, contender: Contender, count: int, seed: int, limit: int | None) -> bytes:
    """Return the contender's saved model, trained on ``count`` random records of every task of a dataset (0: all)."""
    return _trained(path, contender, count, seed, limit).save()


def _trained(path: Path, contender: Contender, count: int, seed: int, limit: int | None) -> CostModel:
    assert contender.model is not None
    model = contender.model.make(seed, 0 if contender.from_analyzer else None)
    tables, logs, groups = [], [], []
    for number, task in enumerate(_all_task_features(path, limit)):
        rows = np.random.default_rng([seed, 6]).permutation(len(task.data))[: count or None]
        features, secs = _records(task, rows, model)
        tables.append(features)
        logs.append(secs)
        groups.append(np.full(len(rows), number, dtype=np.int64))
    model.fit(FeatureTable.concatenate(tables), np.concatenate(logs), np.concatenate(groups))
    return model


def across(
    path: Path, other_tasks: Path, contender: Contender, count: int, seed: int, limit: int | None
) -> tuple[list[list[float]], float]:
    """Train a contender on ``count`` records of every task of one dataset (0: all), and let it rank the candidates of
    every task of another dataset. Return the quality for each of the other tasks (:meth:`Ranked.listed`), and the
    seconds of the training."""
    tasks = _all_task_features(other_tasks, limit)
    began = time.perf_counter()
    model = None if contender.model is None else _trained(path, contender, count, seed, limit)
    secs = time.perf_counter() - began
    figures = []
    for task in tasks:
        rows = np.arange(len(task.data))
        scores = Scorer(task.data).scores(rows, None) if model is None else _scores(model, task.only(model.views))
        figures.append(Ranked.of(scores, task.data.cost_secs).listed())
    return figures, secs


def prediction_secs(path: Path, contender: Contender, repeats: int, limit: int | None) -> float:
    """Return the CPU seconds to predict :data:`PREDICTED` new candidates of a sketch from their decisions, including
    the features: the fastest of ``repeats`` calls on the first described sketch of each task, and of these the median
    over the tasks."""
    taken = []
    for task in _all_task_features(path, limit):
        data = task.data
        rows = np.sort(parts(data, 0)[0][:64])
        predictor = calibrated_predictor(data, rows)
        if contender.label == DEFAULT:
            train(data, rows, predictor, 0)
        model = None
        if contender.model is not None:
            model = _untrained(Contender(contender.label, contender.model, contender.from_analyzer), 0, task, None)
            features, logs = _records(task, rows, model)
            model.fit(features, logs, np.zeros(len(rows), dtype=np.int64))
        sketch = next((sketch for sketch in data.sketches if sketch.statements), None)
        if sketch is not None:
            matrix = sample(sketch, PREDICTED, np.random.default_rng(1))
            taken.append(
                min(_once(data, task, sketch.index, matrix, predictor, model, contender) for _ in range(repeats))
            )
    return float(np.median(taken))


def _once(
    data: TaskData,
    task: TaskFeatures,
    at: int,
    matrix: Rows,
    predictor: object,
    model: CostModel | None,
    contender: Contender,
) -> float:
    from policies.search.draft import evaluate
    from policies.search.prediction import Predictor

    assert isinstance(predictor, Predictor)
    began = time.process_time()
    drafted = evaluate(data.sketches[at], matrix, data.abstraction)
    if model is not None:
        names = [name for name in model.views if name != "symbolic"]
        views = describe(data.sketches[at], matrix, data.abstraction, names)
        model.predict(FeatureTable({"symbolic": task.layout.place(at, drafted.features), **views}))
    elif contender.label != ANALYZER:
        predictor.predicted(at, drafted)
    return time.process_time() - began
