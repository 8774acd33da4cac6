"""Acquisition functions that no method uses: the probability of improvement and the confidence bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policies.arrays import Floats
from policies.search.acquisition import checked, normal_cdf

CONFIDENCE = 1.0
"""Deviations that the confidence bound adds to the mean."""


def probability_of_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """``PI = Phi((mu - best) / sigma)``, maximising: shape ``(n,)``, in [0, 1].

    Where ``sigma = 0``: 1 for ``mu > best``, else 0. Input that is not a number is as for :func:`expected_improvement`,
    with probability 0 for no gain and 1 for ``mu = inf``; an infinite deviation gives 1/2. With ``best`` minus infinity
    or NaN (nothing measured) every valid candidate is an improvement: 1. With ``best`` infinite none is: 0.
    """
    mean, deviation, valid = checked(mean, deviation)
    if math.isnan(best) or best == -math.inf:
        return valid.astype(np.float64)
    if best == math.inf:
        return np.zeros(mean.shape)
    delta = np.where(valid, mean, 0.0) - best
    sigma = np.where(valid, deviation, 0.0)
    certain = np.where(delta > 0, 1.0, 0.0)
    uncertain = (sigma > 0) & np.isfinite(delta)
    z = np.divide(delta, sigma, out=np.zeros(mean.shape), where=uncertain)
    return np.where(valid, np.where(uncertain, normal_cdf(z), certain), 0.0)


def probability_of_secs(mean_log_secs: Floats, deviation: Floats, best_secs: float) -> Floats:
    """Probability that a candidate is faster than an incumbent of ``best_secs`` (infinite: none)."""
    best = -math.log(best_secs) if 0 < best_secs < math.inf else -math.inf
    return probability_of_improvement(-np.asarray(mean_log_secs), deviation, best)


def confidence_bound_of_secs(
    mean_log_secs: Floats, deviation: Floats, best_secs: float, confidence: float = CONFIDENCE
) -> Floats:
    """Upper confidence bound of the log of throughput, as throughput relative to the incumbent's, shape ``(n,)``.

    ``best_secs / exp(mu - c sigma)``, with ``c = confidence``: maximising it minimises the lower confidence bound
    ``mu - c sigma`` of the log seconds. Without an incumbent relative to one second. Infinite where the deviation is
    (and ``c > 0``).
    """
    if not (0 <= confidence < math.inf):
        raise ValueError(f"the confidence cannot be negative or infinite, got {confidence}")
    gain, deviation, valid = checked(-np.asarray(mean_log_secs, dtype=np.float64), deviation)
    reference = math.log(best_secs) if 0 < best_secs < math.inf else 0.0
    bonus = confidence * np.where(valid, deviation, 0.0) if confidence > 0 else 0.0
    with np.errstate(over="ignore"):
        return np.where(valid, np.exp(np.where(valid, gain, 0.0) + bonus + reference), 0.0)


@dataclass(frozen=True)
class ProbabilityOfImprovement:
    """:func:`probability_of_secs`."""

    name: ClassVar[str] = "pi"

    def __call__(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """See :class:`policies.search.acquisition.Acquisition`."""
        return probability_of_secs(mean_log_secs, deviation, best_secs)

    def energy(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """See :class:`policies.search.acquisition.Acquisition`."""
        return -self(mean_log_secs, deviation, best_secs)


@dataclass(frozen=True)
class ConfidenceBound:
    """:func:`confidence_bound_of_secs`, ``confidence`` deviations above the mean."""

    name: ClassVar[str] = "ucb"
    confidence: float = CONFIDENCE

    def __call__(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """See :class:`policies.search.acquisition.Acquisition`."""
        return confidence_bound_of_secs(mean_log_secs, deviation, best_secs, self.confidence)

    def energy(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """See :class:`policies.search.acquisition.Acquisition`."""
        return -self(mean_log_secs, deviation, best_secs)
