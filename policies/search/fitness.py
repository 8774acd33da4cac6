"""Fitness functions by which a draft ranks candidates.

A fitness maps a sketch's decisions, its symbolic features and the analyzer's log seconds to predicted log seconds, and
uses only those that it needs. The calibrated analyzer needs neither all features nor deviations:
:class:`CalibratedFitness` works on the analyzer's core terms, chunk by chunk, and scores a candidate in about a
microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.analysis.analyzer import core_names, models
from policies.analysis.equation_1 import equation_1_log_secs
from policies.arrays import Features, Floats, Matrix
from policies.features.table import PREDICTED, JointLayout, symbolic_features
from policies.search.calibration import Calibration
from policies.space.sampling import log_coordinates

LEAST_TERM = 2.0**-40
"""Terms are at least this before their logarithm is taken, as in the features."""

Fitness = Callable[[Matrix, Features, Floats], Floats]
"""From decisions ``(n, d)``, symbolic features ``(n, f)`` and the analyzer's log seconds ``(n,)`` (NaN for a sketch
that is not described) to predicted log seconds."""


def calibration_columns(layout: JointLayout, sketches: tuple[Sketch, ...], kind: str) -> tuple[int, ...]:
    """Columns of the joint features that the calibration of a task learns from: the analyzer's prediction and core
    terms, which the sketches of a task share, and the columns that name the sketch; for sketches that are not described
    also their decisions. ``kind``: kind of the device."""
    core = {PREDICTED, *core_names(kind)}
    chosen = {at for at, name in enumerate(layout.names) if name in core}
    chosen |= set(range(len(layout.names) - len(sketches), len(layout.names)))
    for sketch, positions in zip(sketches, layout.positions, strict=True):
        if not sketch.described:
            chosen |= set(positions)
    return tuple(sorted(chosen))


@dataclass(frozen=True)
class CalibratedFitness:
    """The calibrated analyzer as the fitness of one sketch of a task: ``log(predicted)`` plus the correction's mean."""

    calibration: Calibration
    layout: JointLayout
    """Features of the task, of which the calibration reads some columns."""
    sketch: int
    """Position of the sketch among the task's."""
    prior_secs: float
    """Prediction for a sketch that is not described."""

    def __call__(self, matrix: Matrix, features: Features, analytic_log_secs: Floats) -> Floats:
        """Compute the fitness from known features, like any other fitness."""
        del matrix
        base = np.where(np.isnan(analytic_log_secs), np.log(self.prior_secs), analytic_log_secs)
        columns = self.calibration.columns
        return base + self.calibration.mean(self.layout.place(self.sketch, features)[:, columns].T)

    def log_secs(self, sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Floats:
        """Compute the fitness from decisions alone, ``(n,)``; infinity where a candidate is not worth building."""
        if not sketch.described:
            return self(matrix, symbolic_features(sketch, matrix, device), np.full(len(matrix), np.nan))
        names = [self.layout.names[column] for column in self.calibration.columns]
        row_of = {name: row for row, name in enumerate(names)}
        wanted = [(row_of[name], name) for name in core_names(device.kind) if name in row_of]
        columns = self.layout.positions[self.sketch]
        decided = {column: at for at, column in enumerate(columns[len(columns) - sketch.width :])}
        first = len(self.layout.names) - len(self.layout.positions)
        scores = np.empty(len(matrix), dtype=np.float32)
        for chunk, evaluation in models(sketch, matrix, device):
            predicted = np.log(evaluation.latency_secs)
            rows = np.full((len(names), len(predicted)), np.nan, dtype=np.float32)
            core = evaluation.core()
            for row, name in wanted:
                np.maximum(core[name], LEAST_TERM, out=rows[row])
                np.log2(rows[row], out=rows[row])
            if PREDICTED in row_of:
                rows[row_of[PREDICTED]] = predicted
            coordinates: Floats | None = None
            for row, column in enumerate(self.calibration.columns.tolist()):
                if column >= first:
                    rows[row] = float(column - first == self.sketch)
                elif column in decided:  # a decision that an undescribed sketch of the task has too
                    if coordinates is None:
                        coordinates = log_coordinates(sketch, matrix[chunk])
                    rows[row] = coordinates[:, decided[column]]
            predicted += self.calibration.mean(rows)
            predicted[~evaluation.feasible] = np.inf
            scores[chunk] = predicted
        return scores


@dataclass(frozen=True)
class Equation1Fitness:
    """Pruner's equation 1, as published, as the fitness of one sketch. ``penalised``: see
    :func:`analyzer_log_secs`."""

    sketch: Sketch
    device: DeviceAbstraction
    penalised: bool

    def __call__(self, matrix: Matrix, features: Features, analytic_log_secs: Floats) -> Floats:
        """Compute the fitness like any other one."""
        del features, analytic_log_secs
        return self.log_secs(self.sketch, matrix, self.device)

    def log_secs(self, sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Floats:
        """Compute the fitness from decisions alone, ``(n,)``; infinity where a candidate is not worth building."""
        return equation_1_log_secs(sketch, matrix, device, penalised=self.penalised)


def analyzer_log_secs(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, *, penalised: bool = False) -> Floats:
    """The analyzer's log seconds alone, ``(n,)``; infinity where a candidate is not worth building.

    ``penalised``: on CUDA, a candidate that only needs too many registers or too much shared memory is not ruled out;
    its seconds contain the penalties for that. Raise ValueError if the sketch is not described.
    """
    scores = np.empty(len(matrix), dtype=np.float32)
    for chunk, evaluation in models(sketch, matrix, device):
        allowed = evaluation.within_limits if penalised else evaluation.feasible
        scores[chunk] = np.where(allowed, np.log(evaluation.latency_secs), np.float32(np.inf))
    return scores
