"""A Gaussian process on the standardised features of a task.

With ``m(x)`` the prior (the analyzer's log seconds, or 0 if another model has been subtracted), ``c`` the
median of ``y - m(x)`` over the records and ``r = y - m(x) - c``, a candidate is predicted by (Rasmussen and Williams,
*Gaussian Processes for Machine Learning*, equations 2.25 and 2.26)

    mean(x) = m(x) + c + k(x)^T (K + N)^-1 r          variance(x) = a - k(x)^T (K + N)^-1 k(x)
    k(x, x') = a exp(-|x - x'|^2 / 2 l)

``x`` are the features of :mod:`policies.features.standard`. ``N`` is diagonal: for each record the noise ``b``, divided
by the record's weight and multiplied by ``1 + (2 max(r, 0))^2``, since a candidate that is far slower than expected
must not change the predictions of its neighbours much. ``a`` and ``b`` are the values of a grid under which the records
are most likely, with a prior on both: few records must not be explained by noise alone, nor without noise.

If there are more than :data:`MOST_RECORDS`, only the fastest and the latest count
(:meth:`GaussianProcessModel.chosen_rows`), because the cost is cubic in their number.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Features, Floats, Groups
from policies.cost_models import model_bytes
from policies.cost_models.protocol import CostModelDefaults, check_records
from policies.features.table import STANDARD, SYMBOLIC, FeatureTable
from policies.features.views import FEATURE_VERSION, check_version

LENGTH = 0.2
"""``l``. Two random candidates have a squared distance of about 2, two of one sketch mostly of 0.5 to 2. Half and twice
this value made no difference beyond the spread on the recorded sets (docs/lab/benchmarks.md)."""
SLOW_NOISE = 2.0
"""Growth of the noise with the log seconds by which a record is slower than expected. Set by hand. It came with other
changes, which together saved trials (docs/lab/benchmarks.md, 1,347 to 1,259)."""
AMPLITUDES = (0.04, 0.09, 0.2, 0.4, 0.8)
NOISES = (0.01, 0.03, 0.1, 0.25)
"""Variances of log seconds that are tried for ``a`` and ``b``: deviations from 0.2 to 0.9 and from 0.1 to 0.5. Set by
hand."""
USUAL_AMPLITUDE, USUAL_NOISE = 0.3, 0.04
"""The middle of the prior on ``a`` and ``b``; the logarithm of each has a deviation of 1. Set by hand."""
LEAST_RECORDS = 8
"""With fewer records, ``a`` and ``b`` have their usual values. Set by hand, as the next two are."""
MOST_RECORDS = 256
LEAST_DEVIATION = 1e-3


class GaussianProcessModel(CostModelDefaults):
    """See the module's docstring. It reads one task's features.

    ``offset_column``: the symbolic feature with the prior prediction in log seconds (the analyzer's); if None, the
    prior is 0. If the feature is NaN (the sketch is not described), the prior is the median of the records without a
    prediction, or of all records if there are none.
    """

    KIND: ClassVar[str] = "gaussian"
    views: ClassVar[tuple[str, ...]] = (STANDARD, SYMBOLIC)

    def __init__(self, seed: int = 0, offset_column: int | None = None) -> None:
        self.seed = seed
        self.offset_column = offset_column
        self._points: Features | None = None
        self._level = 0.0
        self._unknown = 0.0
        self._amplitude = USUAL_AMPLITUDE
        self._weights: Floats = np.empty(0)
        self._factor: Floats = np.empty((0, 0))

    def fit(self, features: FeatureTable, log_secs: Floats, groups: Groups, weights: Floats | None = None) -> None:
        """See :meth:`CostModel.fit`."""
        check_records(features, log_secs, groups, weights)
        _check_columns(features, features.view(STANDARD).shape[1])
        counts = np.ones(len(log_secs)) if weights is None else weights
        rows = self.chosen_rows(log_secs)
        self._train(features.take(rows), log_secs[rows], counts[rows])

    def chosen_rows(self, log_secs: Floats) -> NDArray[np.intp]:
        """See :class:`policies.cost_models.protocol.CostModel`: all rows if there are at most :data:`MOST_RECORDS`;
        else this number, of which one half are the fastest rows and the other half the latest of the others."""
        count = len(log_secs)
        if count <= MOST_RECORDS:
            return np.arange(count)
        fastest = np.argsort(log_secs, kind="stable")[: MOST_RECORDS // 2]
        others = np.setdiff1d(np.arange(count), fastest)[-(MOST_RECORDS - len(fastest)) :]
        return np.sort(np.concatenate([fastest, others]))

    def _train(self, table: FeatureTable, log_secs: Floats, counts: Floats) -> None:
        prior = self._raw_prior(table)
        known = np.isfinite(prior)
        self._level = float(np.median((log_secs - prior)[known])) if known.any() else 0.0
        self._unknown = float(np.median(log_secs[~known] if not known.all() else log_secs)) - self._level
        prior = np.where(known, prior, self._unknown)
        residual = log_secs - prior - self._level
        share = (1.0 + np.square(SLOW_NOISE * np.maximum(residual, 0.0))) / counts
        points = table.view(STANDARD)
        near = _near(points, points)
        self._amplitude, noise = _most_likely(near, residual, share)
        factor = np.linalg.cholesky(self._amplitude * near + np.diag(noise * share))
        # The inverse is kept, because the model predicts far more often than it is trained.
        self._factor = np.linalg.inv(factor)
        self._weights = self._factor.T @ (self._factor @ residual)
        self._points = points

    def predict(self, features: FeatureTable) -> tuple[Floats, Floats]:
        """See :meth:`CostModel.predict`; the deviation is that of the mean, without noise."""
        if self._points is None:
            raise ValueError("the model has not been trained")
        _check_columns(features, self._points.shape[1])
        points = features.view(STANDARD)
        near = self._amplitude * _near(points, self._points)
        prior = self._raw_prior(features)
        mean = np.where(np.isfinite(prior), prior, self._unknown) + self._level + near @ self._weights
        explained = np.square(near @ self._factor.T).sum(axis=1)
        return mean, np.sqrt(np.maximum(self._amplitude - explained, LEAST_DEVIATION**2))

    def _raw_prior(self, features: FeatureTable) -> Floats:
        if self.offset_column is None:
            return np.zeros(len(features))
        return features.view(SYMBOLIC)[:, self.offset_column].astype(np.float64)

    def save(self) -> bytes:
        """See :meth:`CostModel.save`."""
        if self._points is None:
            raise ValueError("the model has not been trained")
        header: dict[str, Any] = {
            "version": FEATURE_VERSION,
            "seed": self.seed,
            "offset_column": self.offset_column,
            "level": self._level,
            "unknown": self._unknown,
            "amplitude": self._amplitude,
        }
        arrays = {"points": self._points, "weights": self._weights, "factor": self._factor}
        return model_bytes.pack(model_bytes.SavedState(self.KIND, header, arrays))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """The model that ``save`` wrote; ValueError for other bytes."""
        saved = model_bytes.unpack(data, cls.KIND)
        header, arrays = saved.header, saved.arrays
        check_version(header)
        model = cls(header["seed"], header["offset_column"])
        model._level, model._unknown = header["level"], header["unknown"]
        model._amplitude = header["amplitude"]
        model._points, model._weights, model._factor = arrays["points"], arrays["weights"], arrays["factor"]
        return model


def _near(left: Features, right: Features) -> Floats:
    """``exp(-|x - x'|^2 / 2 l)``, ``(n, m)``."""
    first, second = left.astype(np.float64), right.astype(np.float64)
    squared = np.square(first).sum(axis=1)[:, None] + np.square(second).sum(axis=1) - 2.0 * first @ second.T
    return np.asarray(np.exp(np.maximum(squared, 0.0) * (-0.5 / LENGTH)))


def _most_likely(near: Floats, residual: Floats, share: Floats) -> tuple[float, float]:
    """Amplitude and noise of the grid under which the residuals are most likely. ``share`` (n,): factor on the noise of
    each record."""
    if len(residual) < LEAST_RECORDS:
        return USUAL_AMPLITUDE, USUAL_NOISE
    likely = {(a, b): _log_likelihood(near, residual, share, a, b) for a in AMPLITUDES for b in NOISES}
    return max(likely, key=lambda each: likely[each])


def _log_likelihood(near: Floats, residual: Floats, share: Floats, amplitude: float, noise: float) -> float:
    """Log likelihood of the residuals, plus the log prior of amplitude and noise, up to a constant (Rasmussen and
    Williams 5.8)."""
    factor = np.linalg.cholesky(amplitude * near + np.diag(noise * share))
    half = np.linalg.solve(factor, residual)
    prior = math.log(amplitude / USUAL_AMPLITUDE) ** 2 + math.log(noise / USUAL_NOISE) ** 2
    return float(-0.5 * half @ half - np.log(np.diag(factor)).sum() - 0.5 * prior)


def _check_columns(features: FeatureTable, expected: int) -> None:
    """Raise ValueError unless both views have ``expected`` columns."""
    columns, standard = features.view(SYMBOLIC).shape[1], features.view(STANDARD).shape[1]
    if not columns == standard == expected:
        raise ValueError(f"the model reads {expected} columns of features, got {columns} and {standard}")
