"""Training data of a task: features and costs of its measured candidates, in the order of observation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis.cpu.fewer_rows import TimesOverRows
from policies.arrays import Floats, Groups, Matrix
from policies.cost_models.protocol import targets
from policies.features.standard import standardisation_of
from policies.features.table import KNOBS, OF_A_TASK, STANDARD, SYMBOLIC, FeatureTable, JointLayout, joint_layout
from policies.features.views import table
from policies.search.draft import evaluate
from policies.search.task_records import Observation, Proposal, TaskRecords, as_matrix


@dataclass(frozen=True)
class TrainingSet:
    """Records to train on: ``n`` candidates of a task."""

    features: FeatureTable
    """Their features."""
    log_secs: Floats
    """Log seconds, ``(n,)``, all finite."""
    groups: Groups
    """The task of each row, ``(n,)``."""
    names: tuple[str, ...]
    """Names of the symbolic columns."""
    offset_column: int | None
    """Column of the analyzer's log seconds, NaN where a sketch is not described; None if no sketch is described."""
    weights: Floats
    """Weight of each row, ``(n,)``."""


class TrainingTable:
    """The records of one task, with the features of their candidates in the joint layout of its sketches.

    ``views``: views of the features that models read; the symbolic one is always made.
    """

    def __init__(
        self, sketches: Sequence[Sketch], device: DeviceAbstraction, views: Sequence[str] = (SYMBOLIC,)
    ) -> None:
        self.sketches = tuple(sketches)
        self.device = device
        self.layout: JointLayout = joint_layout(self.sketches, device)
        self.records = TaskRecords(self.sketches)
        self._views = tuple(views)
        self._standard = standardisation_of(self.layout, self.sketches, device) if STANDARD in self._views else None
        self._times_over_rows = {
            at: TimesOverRows(sketch, device) for at, sketch in enumerate(self.sketches) if sketch.fewer_rows
        }
        self._features: list[FeatureTable] = []
        self._analytic: list[Floats] = [np.empty(0)]

    def observe(self, observations: Iterable[Observation]) -> None:
        """Take in outcomes. A candidate seen before only changes if it is now faster (also after a failure), or its
        cost was revised. Raise ValueError for a candidate that is not of this task."""
        for at, matrix in enumerate(self.records.add(self._over_all_rows(observations))):
            if len(matrix):
                drafted = evaluate(self.sketches[at], matrix, self.device)
                self._features.append(self.described(at, matrix, drafted.features))
                self._analytic.append(drafted.analytic_log_secs)

    def over_rows(self, candidates: Sequence[Observation | Proposal]) -> Floats:
        """Return the times of candidates over all numbers of rows, relative to the time for the most rows, which is
        measured (:func:`policies.analysis.cpu.fewer_rows.time_over_rows`), ``(n,)``; 1 for decisions that are no
        candidate of the task."""
        times = np.ones(len(candidates))
        for at, of_sketch in self._times_over_rows.items():
            width = self.sketches[at].width
            mine = [
                number for number, each in enumerate(candidates) if each.sketch == at and len(each.decisions) == width
            ]
            if mine:
                times[mine] = of_sketch.of(as_matrix([candidates[number].decisions for number in mine], width))
        return times

    def _over_all_rows(self, observations: Iterable[Observation]) -> Iterable[Observation]:
        """Return the outcomes with their costs over all numbers of rows; only the most rows were measured."""
        if not self._times_over_rows:
            return observations
        outcomes = list(observations)
        ran = [at for at, each in enumerate(outcomes) if math.isfinite(each.cost_secs)]
        for at, time in zip(ran, self.over_rows([outcomes[at] for at in ran]).tolist(), strict=True):
            outcomes[at] = replace(outcomes[at], cost_secs=outcomes[at].cost_secs * time)
        return outcomes

    def described(self, sketch: int, matrix: Matrix, symbolic: NDArray[np.float32]) -> FeatureTable:
        """Candidates ``(n, d)`` of a sketch as the models read them; ``symbolic`` (n, f): the sketch's own features."""
        placed = self.layout.place(sketch, symbolic)
        others = [name for name in self._views if name not in OF_A_TASK]
        views = dict(table(placed, self.sketches[sketch], matrix, self.device, others).views)
        if KNOBS in self._views:
            views[KNOBS] = placed[:, self.layout.knobs]
        if self._standard is not None:
            views[STANDARD] = self._standard(placed)
        return FeatureTable(views)

    @property
    def best_secs(self) -> float:
        """Cost of the best measured candidate, infinite while there is none."""
        return self.records.best_secs

    @property
    def features(self) -> FeatureTable:
        """Joint features of the ``n`` measured candidates."""
        if not self._features:
            none = np.empty((0, self.sketches[0].width), dtype=np.int64)
            return self.described(0, none, np.empty((0, len(self.layout.positions[0])), dtype=np.float32))
        if len(self._features) > 1:
            self._features = [FeatureTable.concatenate(self._features)]
        return self._features[0]

    @property
    def analytic_log_secs(self) -> Floats:
        """The analyzer's log seconds of the measured candidates, ``(n,)``, NaN where a sketch is not described."""
        if len(self._analytic) > 1:
            self._analytic = [np.concatenate(self._analytic)]
        return self._analytic[0]

    @property
    def log_secs(self) -> Floats:
        """Log seconds of the measured candidates, ``(n,)``, all finite: failures count as slower than the slowest
        success."""
        return targets(self.records.ordered_costs)

    def training_set(self) -> TrainingSet:
        """All records, as one task."""
        log_secs = self.log_secs
        groups = np.zeros(len(log_secs), dtype=np.int64)
        weights = self.records.ordered_weights
        return TrainingSet(self.features, log_secs, groups, self.layout.names, self.layout.offset_column, weights)
