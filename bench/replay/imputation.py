"""Imputes the costs of candidates that a dataset lacks, with a model of the recorded costs. A search in the open space
of a task then gets a cost for whatever it proposes.

A recorded candidate costs what was measured. Any other candidate ``x`` costs

    exp(q(m(x) + e(x))),

but not less than the time that the device's peak allows, or than the best measured cost if that is less.

- ``m``: a model of the log seconds of the task's records (:mod:`bench.replay.cost_means`).
- ``e``: one of the model's held-out errors. A hash of the candidate draws it among the errors of the :data:`NEAR`
  records whose held-out predictions are nearest to ``m(x)``. So imputed costs scatter about the prediction as measured
  costs do, also among fast candidates, and a candidate always has the same cost.
- ``q``: a monotone function that gives random candidates the same distribution of costs as the records, which are
  random candidates too. Without it the fastest candidates are not rare enough, because some errors are large.

A second hash decides whether a candidate fails. The probability is the share of failures among the recorded candidates
nearest to it.
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
"""Number of held-out errors among which a candidate's error is drawn."""
NEAR_RECORDS = 16
"""Number of recorded candidates of the same sketch whose share of failures is a candidate's probability to fail."""
DRAWN = 4
"""Number of random candidates for each successful record, to fit ``q``."""


@dataclass(frozen=True)
class HeldOutQuality:
    """Quality of a model's predictions of records that it has not seen, in log seconds."""

    rank: float
    """Spearman's correlation with the measured costs."""
    fast_rank: float
    """Spearman's correlation within the quarter that was measured fastest."""
    deviation: float
    """Standard deviation of the errors."""
    fast_deviation: float
    """Standard deviation of the errors of the tenth that is predicted fastest."""
    spread: float
    """Standard deviation of the measured costs."""


@dataclass(frozen=True)
class ImputedCosts:
    """Imputed outcomes of ``n`` candidates."""

    cost_secs: Floats
    """Seconds of a run ``(n,)``; infinite for a failure."""
    build_secs: Floats
    """Seconds of a build ``(n,)``: those of the nearest record with the same outcome (success or failure)."""
    measure_secs: Floats
    """Seconds of a measurement ``(n,)``, of the same record."""


class CostImputation:
    """The imputed costs of all candidates of a task; see the module's docstring. ``errors`` (n,): the model's held-out
    errors, in the order of the held-out predictions; ``held_out``: their summary."""

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
        """Return the model's prediction ``m(x)`` for candidates ``(n, d)`` of a sketch, log seconds ``(n,)``."""
        data = self._data
        return self._model.predict(sketch, read_points(self.kind, data.sketches[sketch], matrix, data.abstraction))

    def fill(self, sketch: int, matrix: Matrix) -> ImputedCosts:
        """Return the imputed costs of candidates ``(n, d)`` of a sketch, also for those that are recorded."""
        data = self._data
        draws = self._draws(sketch, matrix)
        log_secs = self._as_recorded(self._scattered(sketch, matrix, draws[:, 0]))
        cost_secs = np.maximum(np.exp(log_secs), self._floor_secs)

        rows = data.rows(sketch)
        if not len(rows):  # without a record of the sketch all its candidates fail
            return ImputedCosts(np.full(len(matrix), np.inf), np.zeros(len(matrix)), np.zeros(len(matrix)))
        apart = squared_distances(log_coordinates(data.sketches[sketch], matrix), self._near[sketch])
        ran = data.ok[rows]
        share = 1.0 - ran[np.argsort(apart, axis=1, kind="stable")[:, :NEAR_RECORDS]].mean(axis=1)
        fails = (draws[:, 1] < share) | ~ran.any()
        alike = np.where(ran[None, :] == ~fails[:, None], apart, np.inf)
        nearest = rows[alike.argmin(axis=1)]
        return ImputedCosts(np.where(fails, np.inf, cost_secs), data.build_secs[nearest], data.measure_secs[nearest])

    def _scattered(self, sketch: int, matrix: Matrix, draws: Floats) -> Floats:
        """Return ``m(x) + e(x)`` of candidates ``(n, d)``; ``draws`` (n,) in [0, 1) choose among the errors."""
        mean = self.expected(sketch, matrix)
        near = min(NEAR, len(self.errors))
        first = np.searchsorted(self._predicted, mean) - near // 2
        start = np.clip(first, 0, len(self.errors) - near)
        return np.asarray(mean + self.errors[start + (draws * near).astype(np.int64)])

    def _quantiles(self, measured: Floats) -> tuple[Floats, Floats]:
        """Return the knots of ``q``: quantiles of ``m + e`` over random candidates, and the same quantiles of the log
        costs, which are the sorted ``measured`` log seconds themselves. Each sketch has :data:`DRAWN` random candidates
        for each of its successful records."""
        rng, scattered = np.random.default_rng(0), []
        for at, sketch in enumerate(self._data.sketches):
            drawn = sample(sketch, DRAWN * int(self._data.ok[self._data.rows(at)].sum()), rng)
            if len(drawn):
                scattered.append(self._scattered(at, drawn, self._draws(at, drawn)[:, 0]))
        shares = (np.arange(len(measured)) + 0.5) / len(measured)
        return np.quantile(np.concatenate(scattered), shares), measured

    def _as_recorded(self, log_secs: Floats) -> Floats:
        """Return ``q`` of the values. It has a slope of 1 below the first and above the last knot."""
        beyond = np.minimum(log_secs - self._at[0], 0.0) + np.maximum(log_secs - self._at[-1], 0.0)
        return np.asarray(np.interp(log_secs, self._at, self._costs) + beyond)

    def _draws(self, sketch: int, matrix: Matrix) -> Floats:
        """Return two numbers in [0, 1) for each candidate, ``(n, 2)``: hashes of the candidate, its task and the kind
        of model."""
        head = f"{self._data.task.id} {self._data.sketches[sketch].id} {self.kind} ".encode()
        digests = [hashlib.blake2b(head + key, digest_size=16).digest() for key in row_keys(matrix)]
        whole = np.frombuffer(b"".join(digests), dtype="<u8").reshape(len(matrix), 2)
        return np.asarray((whole >> np.uint64(11)) * 2.0**-53)
