"""Online, in-domain correction of the analyzer: kernel ridge regression on symbolic features.

The target ``y`` is ``log(measured / predicted)``, bounded above; a candidate is then predicted as the analyzer's
seconds times the exponential of the correction. With standardised features ``z`` whose variances over the records add
up to ``l``, the kernel ``k(x, y) = z_x z_y / 2l + exp(-|z_x - z_y|^2 / 2l)`` and its matrix ``K`` over the records,
mean and variance are

    m(x) = median(y) + k(x)^T (K + a I)^-1 (y - median(y)),    v(x) = s^2 + t^2 (k(x, x) - k(x)^T (K + a I)^-1 k(x))

where ``s`` is the leave-one-out error, and ``t^2`` is :data:`SIGNAL` times the mean square of the residuals. The ridge
``a`` is the one of :data:`RIDGES` with the least leave-one-out error. One decomposition of ``K`` gives this error for
all ridges. It costs ``O(n^3)`` in the number of records: milliseconds for hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Features, Floats

# All of these are set by hand.
MIN_RECORDS = 8
"""With fewer records than this, the correction is constant: the median of their ratios."""
PRIOR_DEVIATION = 0.7
"""Deviation of log(measured / predicted) that is assumed before any record: a factor of two."""
RIDGES = (0.15, 0.5, 1.5, 5.0)
"""Noise relative to the signal, from that of a quiet device to that of a noisy one."""
LARGEST_EXCESS = 1.0
"""Limit of a log ratio above the median: a factor of 2.7. A candidate that is a hundred times slower than expected need
only be known as bad, and must not bend the predictions of its neighbours."""
CLIP = 4.0
"""Standard deviations from the mean to which a feature is clipped, so that a feature that hardly varied among the
records cannot make the correction extreme."""
LEAST_SCALE = 0.5
"""Least scale of a feature: half a doubling, since features are logarithms."""

SIGNAL = 0.25
"""Variance of the correction of an unknown candidate, as a share of the residuals' mean square."""
LEAST_NOISE = 0.02
"""Lower bound of the leave-one-out error."""
BLOCK = 1024
"""Candidates corrected together: their kernel with some hundred records stays in a core's cache."""


@dataclass(frozen=True)
class Calibration:
    """A correction fitted to ``m`` records; build it with :func:`calibrate`. Without ``points`` it is constant."""

    shift: float
    """Median of ``log(measured / predicted)``."""
    noise: float
    """Leave-one-out error."""
    columns: NDArray[np.intp]
    """Columns of the features that count, ``(k,)``."""
    centre: Features
    """Mean of each column, ``(k,)``."""
    scale: Features
    """Deviation of each column, ``(k,)``."""
    points: Features
    """The records, standardised, ``(m, k)``."""
    length: float
    """``l`` of the module's formulas."""
    weights: Floats
    """Weight of each record in the mean, ``(m,)``."""
    inverse: Floats
    """``(K + a I)^-1``, ``(m, m)``."""
    signal: float
    """``t^2`` of the module's formulas."""

    @property
    def constant(self) -> bool:
        return len(self.points) == 0

    def correct(self, features: Features) -> tuple[Floats, Floats]:
        """Mean and deviation of ``log(measured / predicted)``, each ``(n,)``, for features ``(n, f)``.

        A feature that is NaN counts as the records' mean.
        """
        count = len(features)
        if self.constant:
            return np.full(count, self.shift), np.full(count, self.noise)
        standard = _standard(features[:, self.columns].T, self.centre, self.scale)
        near = _kernel(self.points, standard, self.length).astype(np.float64)
        mean = self.shift + self.weights @ near
        explained = np.einsum("ij,ij->j", near, self.inverse @ near)
        prior = 1.0 + 0.5 * np.square(standard).sum(axis=0) / self.length  # k(x, x)
        variance = self.noise**2 + self.signal * np.maximum(prior - explained, 0.0)
        return mean, np.sqrt(variance)

    def mean(self, rows: Features) -> Features:
        """The mean of :meth:`correct` alone, ``(n,)`` float32; ``rows`` (k, n): the calibration's columns as rows."""
        if self.constant:
            return np.full(rows.shape[1], self.shift, dtype=np.float32)
        weights = self.weights.astype(np.float32)
        # The linear part of the kernel is summed over the records first, not for each candidate.
        slope = weights @ self.points * np.float32(0.5 / self.length)
        left = _exponents(self.points, self.length)
        mean = np.empty(rows.shape[1], dtype=np.float32)
        for start in range(0, len(mean), BLOCK):
            block = slice(start, start + BLOCK)
            standard = _standard(rows[:, block], self.centre, self.scale)
            mean[block] = slope @ standard + weights @ _smooth(left, standard)
        return mean + np.float32(self.shift)


def _standard(rows: Features, centre: Features, scale: Features) -> Features:
    """Standardised features, clipped, ``(k, n)``; missing values are 0, the mean."""
    standard = rows - centre[:, None]
    standard *= (1.0 / scale)[:, None]
    np.clip(standard, -CLIP, CLIP, out=standard)
    standard[np.isnan(standard)] = 0.0
    return standard


def _kernel(points: Features, standard: Features, length: float) -> Features:
    """Linear kernel plus a smooth local part, shape ``(m, n)``, of records ``(m, k)`` and candidates ``(k, n)``."""
    near = _smooth(_exponents(points, length), standard)
    near += (points * np.float32(0.5 / length)) @ standard
    return near


def _exponents(points: Features, length: float) -> Features:
    """The records' side ``(m, k + 2)`` of a matrix product that gives ``-|z_p - z_x|^2 / 2l``. The last two columns are
    for the squares."""
    half = np.float32(-0.5 / length)
    squares = half * np.square(points).sum(axis=1, keepdims=True)
    return np.concatenate([points / np.float32(length), squares, np.full_like(squares, half)], axis=1)


def _smooth(left: Features, standard: Features) -> Features:
    """``exp(-|z_p - z_x|^2 / 2l)``, ``(m, n)``; ``left``: from :func:`_exponents`."""
    one = np.ones((1, standard.shape[1]), dtype=np.float32)
    squares = np.einsum("ij,ij->j", standard, standard)[None]
    exponent: Features = left @ np.concatenate([standard, one, squares])
    np.exp(exponent, out=exponent)
    return exponent


def uncalibrated() -> Calibration:
    """The correction before any success: none, with the prior's deviation."""
    return _constant(0.0, PRIOR_DEVIATION)


def _constant(shift: float, noise: float) -> Calibration:
    none = np.empty(0, dtype=np.float32)
    points = np.empty((0, 0), dtype=np.float32)
    return Calibration(shift, noise, np.empty(0, np.intp), none, none, points, 1.0, np.empty(0), np.empty((0, 0)), 0.0)


def calibrate(features: Features, log_ratio: Floats, columns: Sequence[int] | None = None) -> Calibration:
    """Fit a correction to records: features ``(n, f)``, ``log_ratio = log(measured / predicted)`` ``(n,)``.

    ``columns``: columns of the features that are used, None for all. A feature that is not finite counts as missing. A
    record whose ratio is not finite is left out.
    """
    sound = np.isfinite(log_ratio)
    if not sound.all():
        features, log_ratio = features[sound], log_ratio[sound]
    if len(log_ratio) == 0:
        return uncalibrated()
    shift = float(np.median(log_ratio))
    if len(log_ratio) < MIN_RECORDS:
        return _constant(shift, PRIOR_DEVIATION)
    chosen = np.arange(features.shape[1]) if columns is None else np.array(columns, dtype=np.intp)
    rows = np.where(np.isfinite(features), features, np.nan)[:, chosen].T.astype(np.float32)
    finite = np.isfinite(rows)
    present = np.maximum(finite.sum(axis=1), 1)
    centre = (np.where(finite, rows, 0.0).sum(axis=1) / present).astype(np.float32)
    spread = np.sqrt(np.where(finite, np.square(rows - centre[:, None]), 0.0).sum(axis=1) / present)
    scale = np.maximum(spread, LEAST_SCALE).astype(np.float32)
    standard = _standard(rows, centre, scale)
    points = np.ascontiguousarray(standard.T)
    length = max(float(points.var(axis=0).sum()), 1.0)
    residual = np.minimum(np.asarray(log_ratio, dtype=np.float64) - shift, LARGEST_EXCESS)
    kernel = _kernel(points, standard, length).astype(np.float64)
    noise, ridge = np.inf, RIDGES[-1]
    values, vectors = np.linalg.eigh(0.5 * (kernel + kernel.T))
    values = np.maximum(values, 0.0)
    turned = vectors.T @ residual
    for each in RIDGES:
        # Leave-one-out residuals in closed form: an honest error with no held-out records.
        left_out = (vectors @ (turned / (values + each))) / (np.square(vectors) @ (1.0 / (values + each)))
        error = float(np.sqrt(np.mean(np.square(left_out))))
        if error < noise:
            noise, ridge = error, each
    inverse = (vectors / (values + ridge)) @ vectors.T
    signal = SIGNAL * float(np.mean(np.square(residual)))
    weights = inverse @ residual
    return Calibration(shift, max(noise, LEAST_NOISE), chosen, centre, scale, points, length, weights, inverse, signal)
