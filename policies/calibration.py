"""Online, in-domain correction of the analyzer: kernel ridge regression on symbolic features.

The target is ``log(measured / predicted)``; a candidate is then predicted as the analyzer's seconds times the
exponential of the correction. With standardised features ``z`` (``f`` of them), the kernel
``k(x, y) = z_x z_y / 2f + exp(-|z_x - z_y|^2 / 2f)`` and its matrix ``K`` over the records, mean and deviation are

    m(x) = median(y) + k(x)^T (K + a I)^-1 (y - median(y)),    v(x) = s^2 + t^2 (k(x, x) - k(x)^T (K + a I)^-1 k(x))

where ``s`` is the leave-one-out error. It costs ``O(n^3)`` in the number of records: milliseconds for hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.quantities import Floats

MIN_RECORDS = 8
"""Fewer records than this only shift the analyzer by their mean, they do not bend it."""
PRIOR_DEVIATION = 0.7
"""Deviation of log(measured / predicted) that is assumed before any record: a factor of two."""


@dataclass(frozen=True)
class Calibration:
    """A fitted correction; build it with :func:`calibrate`. Empty arrays and ``shift`` alone mean a constant one."""

    shift: float
    noise: float
    centre: NDArray[np.float32]
    scale: NDArray[np.float32]
    points: Floats
    weights: Floats
    inverse: Floats
    signal: float

    def correct(self, features: NDArray[np.float32]) -> tuple[Floats, Floats]:
        """Mean and deviation of ``log(measured / predicted)``, each ``(n,)``, for features ``(n, f)``."""
        count = len(features)
        if len(self.points) == 0:
            return np.full(count, self.shift), np.full(count, self.noise)
        standard = _standard(features, self.centre, self.scale)
        near = _kernel(standard, self.points)
        mean = self.shift + near @ self.weights
        explained = np.einsum("ij,ij->i", near @ self.inverse, near)
        own = 1.0 + 0.5 * np.square(standard).mean(axis=1)  # k(x, x)
        variance = self.noise**2 + self.signal * np.maximum(own - explained, 0.0)
        return mean, np.sqrt(variance)


def _standard(features: NDArray[np.float32], centre: NDArray[np.float32], scale: NDArray[np.float32]) -> Floats:
    # Clipped, so that a feature that hardly varied among the records cannot throw the correction far out.
    # A column that a sketch lacks (NaN) stands at the mean: it says nothing.
    standard = np.clip((features - centre) / scale, -4.0, 4.0)
    return np.asarray(np.nan_to_num(standard, nan=0.0), dtype=np.float64)


def _kernel(left: Floats, right: Floats) -> Floats:
    """Linear kernel plus a constant and a smooth local part, shape ``(len(left), len(right))``."""
    features = max(left.shape[1], 1)
    squared = (
        np.square(left).sum(axis=1)[:, None] + np.square(right).sum(axis=1)[None, :] - 2.0 * left @ right.T
    ) / features
    return np.asarray(0.5 * left @ right.T / features + np.exp(-0.5 * np.maximum(squared, 0.0)))


def uncalibrated() -> Calibration:
    """The correction before any record: none, with the prior's deviation."""
    return _constant(0.0, PRIOR_DEVIATION)


def _constant(shift: float, noise: float) -> Calibration:
    empty = np.empty(0, dtype=np.float32)
    return Calibration(shift, noise, empty, empty, np.empty((0, 0)), np.empty(0), np.empty((0, 0)), 0.0)


def calibrate(features: NDArray[np.float32], log_ratio: Floats, ridge: float = 0.15) -> Calibration:
    """Fit a correction to records: features ``(n, f)``, ``log_ratio = log(measured / predicted)`` ``(n,)``, finite.

    ``ridge``: noise relative to the signal; larger is smoother.
    """
    if len(log_ratio) == 0:
        return uncalibrated()
    shift = float(np.median(log_ratio))
    if len(log_ratio) < MIN_RECORDS:
        return _constant(shift, PRIOR_DEVIATION)
    known = np.isfinite(features)
    filled = np.where(known, features, 0.0)
    present = np.maximum(known.sum(axis=0), 1)
    centre = (filled.sum(axis=0) / present).astype(np.float32)
    spread = np.sqrt(np.where(known, np.square(filled - centre), 0.0).sum(axis=0) / present)
    # Never below a floor: features are logarithms, half a doubling is the least that counts as variation.
    scale = np.maximum(spread, 0.5).astype(np.float32)
    points = _standard(features, centre, scale)
    residual = log_ratio - shift
    inverse: Floats = np.linalg.inv(_kernel(points, points) + ridge * np.eye(len(points))).astype(np.float64)
    weights = inverse @ residual
    # Leave-one-out residuals in closed form: an honest noise estimate with no held-out records.
    left_out = weights / np.diag(inverse)
    noise = float(np.sqrt(np.mean(np.square(np.clip(left_out, -2.0, 2.0)))))
    signal = float(np.mean(np.square(residual)))
    return Calibration(shift, max(noise, 0.02), centre, scale, points, weights, inverse, 0.25 * signal)
