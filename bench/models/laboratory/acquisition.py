"""Acquisition functions that no method uses: probability of improvement and confidence bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from policies.arrays import Floats
from policies.search.acquisition import checked, normal_cdf

CONFIDENCE = 1.0
"""Number of deviations that the confidence bound adds to the mean."""


def probability_of_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """``PI = Phi((mu - best) / sigma)``, maximising: shape ``(n,)``, in [0, 1].

    If ``sigma = 0``, the result is 1 for ``mu > best``, else 0.

    Special values: a candidate has probability 0 if its mean or deviation is NaN, its deviation is negative, or its
    mean is minus infinity. It has probability 1 if its mean is plus infinity, and 1/2 if only its deviation is
    infinite. If ``best`` is minus infinity or NaN (nothing is measured), every other candidate has probability 1. If
    ``best`` is plus infinity, every candidate has probability 0. Raise ValueError if the shapes differ.
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
    """Return the probability that a candidate is faster than the incumbent ``best_secs`` (infinite: no incumbent),
    shape ``(n,)``."""
    best = -math.log(best_secs) if 0 < best_secs < math.inf else -math.inf
    return probability_of_improvement(-np.asarray(mean_log_secs), deviation, best)


def confidence_bound_of_secs(
    mean_log_secs: Floats, deviation: Floats, best_secs: float, confidence: float = CONFIDENCE
) -> Floats:
    """Return the upper confidence bound of throughput, relative to the incumbent's throughput, shape ``(n,)``.

    It is ``best_secs / exp(mu - c sigma)``, with ``c = confidence``. Maximising it minimises the lower confidence bound
    ``mu - c sigma`` of the log seconds. Without an incumbent, ``best_secs`` is one second. The bound is infinite if the
    deviation is infinite and ``c > 0``, and 0 for an invalid prediction. Raise ValueError if ``confidence`` is negative
    or not finite, or if the shapes differ.
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
    """:func:`confidence_bound_of_secs` with ``confidence`` deviations."""

    name: ClassVar[str] = "ucb"
    confidence: float = CONFIDENCE

    def __call__(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """See :class:`policies.search.acquisition.Acquisition`."""
        return confidence_bound_of_secs(mean_log_secs, deviation, best_secs, self.confidence)

    def energy(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """See :class:`policies.search.acquisition.Acquisition`."""
        return -self(mean_log_secs, deviation, best_secs)
