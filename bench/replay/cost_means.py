"""Models of the log seconds of a task's records. They impute the costs of other candidates
(:mod:`bench.replay.imputation`).

There are two models (:data:`KINDS`) with different features and different learners:

- ``smooth``: for each sketch the mean of a Gaussian process over the decisions themselves (:func:`log_coordinates`).
  Similar candidates have similar costs. The model does not know what a decision does.
- ``trees``: extremely randomised trees on the loop tree of a candidate (AutoTVM's features for its TreeGRU).

Neither reads features of the analyzer. docs/lab/benchmarks.md says which methods they may still favour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.arrays import Floats, Matrix
from policies.features.views import LOOP_TREE, describe
from policies.space.sampling import log_coordinates

ImputationModel = Literal["smooth", "trees"]
KINDS: tuple[ImputationModel, ...] = get_args(ImputationModel)

FOLDS = 5
"""Number of parts of the records; each part is predicted by a model that is fitted to the other parts."""
LEAST_RECORDS = 8
"""Least number of successful records for which ``smooth`` models a sketch. With fewer records it predicts their median;
with none, the task's median."""

LENGTHS = (0.5, 1.0, 2.0, 4.0)
"""Length scales that the smooth model tries, in units of the root mean square distance between a sketch's records."""
NOISES = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Noise variances that the smooth model tries, as shares of the signal's variance."""
TREES = 100
"""Number of trees of the ``trees`` model."""


class CostMean(Protocol):
    """A model of log seconds that is fitted to records of a task."""

    def predict(self, sketch: int, points: Floats) -> Floats:
        """Return the log seconds ``(n,)`` of candidates of a sketch; ``points`` (n, f): their features
        (:func:`read_points`)."""
        ...


class SmoothMean:
    """The mean of a Gaussian process (kernel ridge regression) over each sketch's records.

    The kernel is the sum of two halves: a Matérn 5/2 kernel over all decisions, and the mean of the Matérn 5/2 kernels
    over each single decision. All sketches of the task have the same length scale and noise: those with the least
    leave-one-out error.
    """

    def __init__(self, sketches: Sequence[Sketch], points: Sequence[Floats], log_secs: Sequence[Floats]) -> None:
        """Fit the model to ``points`` (n_i, d_i), the coordinates of the decisions, and ``log_secs`` (n_i,) of each
        sketch."""
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
                    error += float(np.square(weights[at] / np.diag(inverse)).sum())  # leave-one-out residuals
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
    """The kernel of one sketch, see :class:`SmoothMean`. ``points`` (m, d): its records."""

    def __init__(self, sketch: Sketch, points: Floats) -> None:
        self._points = points
        blocks = [slice(at, at + its.width) for its, at in zip(sketch.decisions, sketch.offsets, strict=True)]
        self._blocks = [slice(0, points.shape[1]), *blocks]
        self._shares = [0.5, *(0.5 / max(len(blocks), 1) for _ in blocks)]
        own = (squared_distances(points[:, its], points[:, its]) for its in self._blocks)
        self._units = [max(float(each.mean()), 1e-12) for each in own]

    def between(self, points: Floats, length: float) -> Floats:
        """Return the kernel ``(n, m)`` between candidates (n, d) and the records."""
        parts = zip(self._shares, self._blocks, self._units, strict=True)
        total = np.zeros((len(points), len(self._points)))
        for share, block, unit in parts:
            total += share * _matern(squared_distances(points[:, block], self._points[:, block]) / (length**2 * unit))
        return total


def squared_distances(one: Floats, other: Floats) -> Floats:
    """Return the squared distances ``(n, m)`` between points ``(n, d)`` and ``(m, d)``."""
    apart = np.square(one).sum(axis=1)[:, None] + np.square(other).sum(axis=1) - 2.0 * one @ other.T
    return np.asarray(np.maximum(apart, 0.0))


def _matern(squares: Floats) -> Floats:
    far = np.sqrt(5.0 * squares)
    return np.asarray((1.0 + far + np.square(far) / 3.0) * np.exp(-far))


class TreesMean:
    """Extremely randomised trees. All sketches whose points have the same number of columns share a forest; the number
    of the sketch is one more column.

    A third of the columns is tried at each split, as is usual for regression. A leaf has at least two records.
    """

    def __init__(self, points: Sequence[Floats], log_secs: Sequence[Floats]) -> None:
        """Fit the model to ``points`` (n_i, f_i) and ``log_secs`` (n_i,) of each sketch."""
        # Imported here because the import takes two seconds.
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
    """Return the features that a model of ``kind`` reads of candidates ``(n, d)`` of a sketch: the decisions for
    ``smooth``, or if the sketch has no statements; else the loop tree."""
    if kind == "smooth" or not sketch.statements:
        return log_coordinates(sketch, matrix)
    trees = describe(sketch, matrix, device, (LOOP_TREE,))[LOOP_TREE]
    return trees.reshape(len(matrix), int(np.prod(trees.shape[1:]))).astype(np.float64)


def fitted(
    kind: ImputationModel, sketches: Sequence[Sketch], points: Sequence[Floats], log_secs: Sequence[Floats]
) -> CostMean:
    """Return a model of ``kind``, fitted to ``points`` (n_i, f) and ``log_secs`` (n_i,) of each sketch."""
    return SmoothMean(sketches, points, log_secs) if kind == "smooth" else TreesMean(points, log_secs)


def predicted_held_out(
    kind: ImputationModel, sketches: Sequence[Sketch], points: Sequence[Floats], log_secs: Sequence[Floats]
) -> Floats:
    """Return the predicted log seconds of all records, sketch after sketch. Each part of the records (:data:`FOLDS`) is
    predicted by a model that was fitted to the other parts."""
    counts = [len(each) for each in log_secs]
    part = np.random.default_rng(0).permutation(np.arange(sum(counts)) % FOLDS)
    parts = np.split(part, np.cumsum(counts)[:-1])
    predicted = [np.empty(count) for count in counts]
    for fold in range(FOLDS):
        kept = [each != fold for each in parts]
        model = fitted(
            kind,
            sketches,
            [each[mine] for each, mine in zip(points, kept, strict=True)],
            [each[mine] for each, mine in zip(log_secs, kept, strict=True)],
        )
        for at, mine in enumerate(kept):
            if not mine.all():
                predicted[at][~mine] = model.predict(at, points[at][~mine])
    return np.concatenate(predicted)
