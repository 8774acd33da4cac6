"""Costs of candidates that a dataset lacks: a stated model of the costs that it has, so that a search in the open space
of a task is answered whatever it proposes.

A recorded candidate costs what was measured. Any other one costs

    exp(q(m(x) + e(x))),  at least what the device's peak allows, or the best that was measured where that is less,

``m``: a model of the log seconds of the task's records; ``e``: one of the model's own held-out errors, drawn by a hash
of the candidate among those of the :data:`NEAR` records whose held-out predictions are nearest to ``m(x)``. So the
costs that are filled in scatter about the prediction as the measured ones do, the fast ones as the fast ones, and a
candidate costs the same whoever asks, whenever. ``q``: a monotone function, by which random candidates cost what those
that were recorded, random ones too, cost as a whole: without it the fastest are not rare enough, because of what is
drawn far from the prediction. A candidate fails where a second hash says so, with the share of failures among the
recorded candidates nearest to it.

The models are in :mod:`bench.replay.cost_means`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from bench.replay.cost_means import (
    ImputationModel,
    fitted,
    predicted_held_out,
    read_points,
    squared_distances,
)
from fleet_tune.base.task_data import TaskData
from policies.arrays import Floats, Matrix
from policies.cost_models.rank_quality import rank_correlation
from policies.space.sampling import log_coordinates, row_keys, sample

NEAR = 32
"""Held-out errors among which the one of a candidate is drawn."""
NEAR_RECORDS = 16
"""Recorded candidates of the same sketch whose share of failures is that of a candidate."""
DRAWN = 4
"""Random candidates for each record, by which the costs that are filled in are made to be as those of the records."""


@dataclass(frozen=True)
class HeldOutQuality:
    """Quality of predictions of records that a model has not seen, in log seconds."""

    rank: float
    """Spearman's correlation."""
    fast_rank: float
    """Spearman's correlation within the fastest quarter."""
    deviation: float
    """Deviation of the errors."""
    fast_deviation: float
    """Deviation of the errors of the tenth that is predicted fastest."""
    spread: float
    """Deviation of the costs themselves."""


@dataclass(frozen=True)
class ImputedCosts:
    """Predictions that stand for records of ``n`` candidates."""

    cost_secs: Floats
    """Seconds of a run ``(n,)``; infinite for a failure."""
    build_secs: Floats
    """Seconds of a build ``(n,)``: those of the nearest record that ended the same way."""
    measure_secs: Floats
    """Seconds of a measurement ``(n,)``, likewise."""


class CostImputation:
    """The costs of all candidates of a task; see the module's docstring. ``errors`` (n,): the model's on records that
    it has not seen, in the order of what it predicted of them; ``held_out``: what they come to."""

    def __init__(self, data: TaskData, kind: ImputationModel) -> None:
        self._data = data
        self.kind = kind
        self._floor_secs = min(data.task.workload.flop / data.abstraction.peak_flops, data.best_secs)
        sketches = range(len(data.sketches))
        self._near = [log_coordinates(sketch, rows) for sketch, rows in zip(data.sketches, data.decisions, strict=True)]
        points = [
            read_points(kind, sketch, rows, data.abstraction)
            for sketch, rows in zip(data.sketches, data.decisions, strict=True)
        ]
        ran = [data.ok[data.rows(at)] for at in sketches]
        good = [each[mine] for each, mine in zip(points, ran, strict=True)]
        log_secs = [np.log(data.cost_secs[data.rows(at)][ran[at]]) for at in sketches]
        self._model = fitted(kind, data.sketches, good, log_secs)
        predicted = predicted_held_out(kind, data.sketches, good, log_secs)
        measured = np.concatenate(log_secs)
        order = np.argsort(predicted, kind="stable")
        self._predicted, self.errors = predicted[order], (measured - predicted)[order]
        self._at, self._costs = self._quantiles(np.sort(measured))
        fast = measured <= np.quantile(measured, 0.25)
        first = max(len(measured) // 10, 2)
        self.held_out = HeldOutQuality(
            rank_correlation(predicted, measured),
            rank_correlation(predicted[fast], measured[fast]),
            float(self.errors.std()),
            float(self.errors[:first].std()),
            float(measured.std()),
        )

    def expected(self, sketch: int, matrix: Matrix) -> Floats:
        """Prediction for candidates ``(n, d)`` of a sketch, log seconds ``(n,)``."""
        data = self._data
        return self._model.predict(sketch, read_points(self.kind, data.sketches[sketch], matrix, data.abstraction))

    def fill(self, sketch: int, matrix: Matrix) -> ImputedCosts:
        """Costs of candidates ``(n, d)`` of a sketch by the model alone, recorded or not."""
        data = self._data
        draws = self._draws(sketch, matrix)
        log_secs = self._as_recorded(self._scattered(sketch, matrix, draws[:, 0]))
        cost_secs = np.maximum(np.exp(log_secs), self._floor_secs)

        rows = data.rows(sketch)
        if not len(rows):  # nothing of this sketch was recorded: nothing is known to run
            return ImputedCosts(np.full(len(matrix), np.inf), np.zeros(len(matrix)), np.zeros(len(matrix)))
        apart = squared_distances(log_coordinates(data.sketches[sketch], matrix), self._near[sketch])
        ran = data.ok[rows]
        share = 1.0 - ran[np.argsort(apart, axis=1, kind="stable")[:, :NEAR_RECORDS]].mean(axis=1)
        fails = (draws[:, 1] < share) | ~ran.any()
        alike = np.where(ran[None, :] == ~fails[:, None], apart, np.inf)
        nearest = rows[alike.argmin(axis=1)]
        return ImputedCosts(np.where(fails, np.inf, cost_secs), data.build_secs[nearest], data.measure_secs[nearest])

    def _scattered(self, sketch: int, matrix: Matrix, draws: Floats) -> Floats:
        """``m(x) + e(x)`` of candidates ``(n, d)``; ``draws`` (n,) in [0, 1) choose among the errors."""
        mean = self.expected(sketch, matrix)
        near = min(NEAR, len(self.errors))
        first = np.searchsorted(self._predicted, mean) - near // 2
        start = np.clip(first, 0, len(self.errors) - near)
        return np.asarray(mean + self.errors[start + (draws * near).astype(np.int64)])

    def _quantiles(self, measured: Floats) -> tuple[Floats, Floats]:
        """Knots of ``q``: quantiles of ``m + e`` over random candidates, of each sketch as many as it has records in
        proportion, and the ``measured`` log seconds, sorted, at the same ones."""
        rng, scattered = np.random.default_rng(0), []
        for at, sketch in enumerate(self._data.sketches):
            drawn = sample(sketch, DRAWN * int(self._data.ok[self._data.rows(at)].sum()), rng)
            if len(drawn):
                scattered.append(self._scattered(at, drawn, self._draws(at, drawn)[:, 0]))
        shares = (np.arange(len(measured)) + 0.5) / len(measured)
        return np.quantile(np.concatenate(scattered), shares), measured

    def _as_recorded(self, log_secs: Floats) -> Floats:
        """``q``, with a slope of 1 beyond the first and the last knot."""
        beyond = np.minimum(log_secs - self._at[0], 0.0) + np.maximum(log_secs - self._at[-1], 0.0)
        return np.asarray(np.interp(log_secs, self._at, self._costs) + beyond)

    def _draws(self, sketch: int, matrix: Matrix) -> Floats:
        """Two numbers in [0, 1) for each candidate, ``(n, 2)``, that follow from it, its task and the kind alone."""
        head = f"{self._data.task.id} {self._data.sketches[sketch].id} {self.kind} ".encode()
        digests = [hashlib.blake2b(head + key, digest_size=16).digest() for key in row_keys(matrix)]
        whole = np.frombuffer(b"".join(digests), dtype="<u8").reshape(len(matrix), 2)
        return np.asarray((whole >> np.uint64(11)) * 2.0**-53)
