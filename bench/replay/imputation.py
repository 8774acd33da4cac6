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

Two models (:data:`KINDS`), which share neither what they read nor how they learn:

- ``smooth``: for each sketch the mean of a Gaussian process over the decisions themselves (:func:`log_coordinates`), so
  that candidates alike cost alike. It knows nothing of what a decision does.
- ``trees``: extremely randomised trees on the tree of loops of a candidate (AutoTVM's features for its TreeGRU).

Neither reads anything of the analyzer. docs/lab/benchmarks.md says to which methods they are near all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from fleet_tune.base.task_data import TaskData
from policies.arrays import Floats, Matrix
from policies.cost_models.rank_quality import rank_correlation
from policies.features.views import LOOP_TREE, describe
from policies.space.sampling import log_coordinates, row_keys, sample

ImputationModel = Literal["smooth", "trees"]
KINDS: tuple[ImputationModel, ...] = get_args(ImputationModel)

FOLDS = 5
"""Parts of the records, each predicted by a model of the others."""
NEAR = 32
"""Held-out errors among which the one of a candidate is drawn."""
NEAR_RECORDS = 16
"""Recorded candidates of the same sketch whose share of failures is that of a candidate."""
DRAWN = 4
"""Random candidates for each record, by which the costs that are filled in are made to be as those of the records."""
LEAST_RECORDS = 8
"""A sketch with fewer successes is not modelled: its candidates are expected at their median, or the task's."""

LENGTHS = (0.5, 1.0, 2.0, 4.0)
"""Length of the smooth model's kernel, in root mean square distances of a sketch's records."""
NOISES = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Noise of the smooth model, as a share of the signal's variance."""
TREES = 100


class CostMean(Protocol):
    """A model of log seconds, fitted to some records of a task."""

    def predict(self, sketch: int, points: Floats) -> Floats:
        """Log seconds ``(n,)`` of candidates of a sketch, ``points`` (n, f) being what the model reads of them."""
        ...


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


class SmoothMean:
    """The mean of a Gaussian process (kernel ridge regression) over each sketch's records.

    The kernel: Matérn's with 5/2 over all decisions, and the mean of those over each decision by itself, half and half.
    Its length and its noise are the task's: those of the least leave-one-out error.
    """

    def __init__(self, sketches: Sequence[Sketch], points: Sequence[Floats], log_secs: Sequence[Floats]) -> None:
        """``points`` (n_i, d_i), the coordinates of the decisions, and ``log_secs`` (n_i,) of each sketch."""
        self._level = float(np.median(np.concatenate(log_secs)))
        self._known = list(log_secs)
        modelled = [at for at, known in enumerate(log_secs) if len(known) >= LEAST_RECORDS]
        self._kernels = {at: _Kernel(sketches[at], points[at]) for at in modelled}
        self._weights: dict[int, Floats] = {}
        self._length = LENGTHS[0]
        best = np.inf
        for length in LENGTHS:
            matrices = {at: kernel.between(points[at], length) for at, kernel in self._kernels.items()}
            for noise in NOISES:
                error, weights = 0.0, {}
                for at, matrix in matrices.items():
                    inverse = np.linalg.inv(matrix + noise * np.eye(len(matrix)))
                    weights[at] = inverse @ (log_secs[at] - log_secs[at].mean())
                    error += float(np.square(weights[at] / np.diag(inverse)).sum())  # left out one by one
                if error < best:
                    best, self._length, self._weights = error, length, weights

    def predict(self, sketch: int, points: Floats) -> Floats:
        """See :class:`CostMean`."""
        known = self._known[sketch]
        if sketch not in self._kernels:
            return np.full(len(points), np.median(known) if len(known) else self._level)
        near = self._kernels[sketch].between(points, self._length)
        return np.asarray(near @ self._weights[sketch] + known.mean())


class _Kernel:
    """See :class:`SmoothMean`. ``points`` (m, d): the records of one sketch."""

    def __init__(self, sketch: Sketch, points: Floats) -> None:
        self._points = points
        blocks = [slice(at, at + its.width) for its, at in zip(sketch.decisions, sketch.offsets, strict=True)]
        self._blocks = [slice(0, points.shape[1]), *blocks]
        self._shares = [0.5, *(0.5 / max(len(blocks), 1) for _ in blocks)]
        self._units = [max(float(_squares(points[:, its], points[:, its]).mean()), 1e-12) for its in self._blocks]

    def between(self, points: Floats, length: float) -> Floats:
        """Kernel between candidates (n, d) and the records, ``(n, m)``."""
        parts = zip(self._shares, self._blocks, self._units, strict=True)
        total = np.zeros((len(points), len(self._points)))
        for share, block, unit in parts:
            total += share * _matern(_squares(points[:, block], self._points[:, block]) / (length**2 * unit))
        return total


def _squares(one: Floats, other: Floats) -> Floats:
    """Squared distances ``(n, m)``."""
    apart = np.square(one).sum(axis=1)[:, None] + np.square(other).sum(axis=1) - 2.0 * one @ other.T
    return np.asarray(np.maximum(apart, 0.0))


def _matern(squares: Floats) -> Floats:
    far = np.sqrt(5.0 * squares)
    return np.asarray((1.0 + far + np.square(far) / 3.0) * np.exp(-far))


class TreesMean:
    """Extremely randomised trees over all sketches whose points have the same columns; the sketch is one more.

    A third of the columns is tried at each split, as is usual for regression, and a leaf has two records at least.
    """

    def __init__(self, points: Sequence[Floats], log_secs: Sequence[Floats]) -> None:
        """``points`` (n_i, f_i) and ``log_secs`` (n_i,) of each sketch."""
        # Two seconds of import that only who fills in should pay.
        from sklearn.ensemble import ExtraTreesRegressor

        self._forests = {}
        for width in sorted({each.shape[1] for each in points}):
            sketches = [at for at, each in enumerate(points) if each.shape[1] == width and len(each)]
            if not sketches:
                continue
            matrix = np.concatenate([_of_sketch(at, points[at]) for at in sketches])
            forest = ExtraTreesRegressor(TREES, max_features=1 / 3, min_samples_leaf=2, random_state=0, n_jobs=1)
            self._forests[width] = forest.fit(matrix, np.concatenate([log_secs[at] for at in sketches]))
        self._level = float(np.median(np.concatenate(log_secs)))

    def predict(self, sketch: int, points: Floats) -> Floats:
        """See :class:`CostMean`."""
        forest = self._forests.get(points.shape[1])
        if forest is None:
            return np.full(len(points), self._level)
        return np.asarray(forest.predict(_of_sketch(sketch, points)), dtype=np.float64)


def _of_sketch(sketch: int, points: Floats) -> NDArray[np.float32]:
    return np.concatenate([points, np.full((len(points), 1), sketch)], axis=1).astype(np.float32)


def read_points(kind: ImputationModel, sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Floats:
    """Features that a model of ``kind`` reads of candidates ``(n, d)``; the decisions where a sketch is not
    described."""
    if kind == "smooth" or not sketch.statements:
        return log_coordinates(sketch, matrix)
    trees = describe(sketch, matrix, device, (LOOP_TREE,))[LOOP_TREE]
    return trees.reshape(len(matrix), int(np.prod(trees.shape[1:]))).astype(np.float64)


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
        self._model = _fitted(kind, data.sketches, good, log_secs)
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
        apart = _squares(log_coordinates(data.sketches[sketch], matrix), self._near[sketch])
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


def _fitted(
    kind: ImputationModel, sketches: Sequence[Sketch], points: Sequence[Floats], log_secs: Sequence[Floats]
) -> CostMean:
    return SmoothMean(sketches, points, log_secs) if kind == "smooth" else TreesMean(points, log_secs)


def predicted_held_out(
    kind: ImputationModel, sketches: Sequence[Sketch], points: Sequence[Floats], log_secs: Sequence[Floats]
) -> Floats:
    """Log seconds of all records, sketch after sketch, each predicted by a model that has not seen its part."""
    counts = [len(each) for each in log_secs]
    part = np.random.default_rng(0).permutation(np.arange(sum(counts)) % FOLDS)
    parts = np.split(part, np.cumsum(counts)[:-1])
    predicted = [np.empty(count) for count in counts]
    for fold in range(FOLDS):
        kept = [each != fold for each in parts]
        model = _fitted(
            kind,
            sketches,
            [each[mine] for each, mine in zip(points, kept, strict=True)],
            [each[mine] for each, mine in zip(log_secs, kept, strict=True)],
        )
        for at, mine in enumerate(kept):
            if not mine.all():
                predicted[at][~mine] = model.predict(at, points[at][~mine])
    return np.concatenate(predicted)
