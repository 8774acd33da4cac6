"""Models of the log seconds of a task's records, by which the costs of other candidates are filled in
(:mod:`bench.replay.imputation`).

Two models (:data:`KINDS`), which share neither what they read nor how they learn:

- ``smooth``: for each sketch the mean of a Gaussian process over the decisions themselves (:func:`log_coordinates`), so
  that candidates alike cost alike. It knows nothing of what a decision does.
- ``trees``: extremely randomised trees on the tree of loops of a candidate (AutoTVM's features for its TreeGRU).

Neither reads anything of the analyzer. docs/lab/benchmarks.md says to which methods they are near all the same.
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
"""Parts of the records, each predicted by a model of the others."""
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
        own = (squared_distances(points[:, its], points[:, its]) for its in self._blocks)
        self._units = [max(float(each.mean()), 1e-12) for each in own]

    def between(self, points: Floats, length: float) -> Floats:
        """Kernel between candidates (n, d) and the records, ``(n, m)``."""
        parts = zip(self._shares, self._blocks, self._units, strict=True)
        total = np.zeros((len(points), len(self._points)))
        for share, block, unit in parts:
            total += share * _matern(squared_distances(points[:, block], self._points[:, block]) / (length**2 * unit))
        return total


def squared_distances(one: Floats, other: Floats) -> Floats:
    """Squared distances ``(n, m)`` between points ``(n, d)`` and ``(m, d)``."""
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


def fitted(
    kind: ImputationModel, sketches: Sequence[Sketch], points: Sequence[Floats], log_secs: Sequence[Floats]
) -> CostMean:
    """Return a model of ``kind``, fitted to ``points`` (n_i, f) and ``log_secs`` (n_i,) of each sketch."""
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
