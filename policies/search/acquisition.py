"""Acquisition functions: scores that say how much a candidate is worth a trial (AdaTune section 4.2).

Direction: everything here is **maximised**. A model predicts log seconds, lower is better; an :class:`Acquisition`
takes such predictions and gives scores that are never negative, larger for better, and comparable among all candidates
that are scored with the same incumbent.

Notation: ``mu`` and ``sigma`` of a prediction; ``best``: the incumbent's performance; ``Phi`` and ``phi``: cumulative
distribution function and density of the standard normal distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats

_INVERSE_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """AdaTune equations 1 and 2, maximising: shape ``(n,)``, not negative.

    ``EI = (mu - best) Phi(Z) + sigma phi(Z)`` with ``Z = (mu - best) / sigma`` where ``sigma > 0``, and
    ``max(0, mu - best)`` where ``sigma = 0``.

    Special values: a candidate gains 0 if its mean or deviation is NaN, its deviation is negative, or its mean is minus
    infinity. It gains infinity if its mean is plus infinity or its deviation is infinite. If ``best`` is minus infinity
    or NaN (nothing is measured), no improvement is defined, and the mean ranks the candidates: the result is its
    distance from the lowest finite mean. An empty array gives an empty array.
    """
    mean, deviation, valid = checked(mean, deviation)
    unbounded = valid & (np.isposinf(mean) | np.isposinf(deviation))
    usable = valid & ~unbounded
    gain = np.zeros(mean.shape)
    if math.isnan(best) or best == -math.inf:
        if usable.any():
            gain[usable] = mean[usable] - mean[usable].min()
    elif best < math.inf:
        delta = mean[usable] - best
        sigma = deviation[usable]
        uncertain = sigma > 0
        z = np.divide(delta, sigma, out=np.zeros_like(delta), where=uncertain)
        density = _INVERSE_SQRT_2PI * np.exp(-0.5 * np.square(np.clip(z, -40.0, 40.0)))
        gain[usable] = np.where(uncertain, delta * normal_cdf(z) + sigma * density, np.maximum(delta, 0.0))
    gain[unbounded] = math.inf
    return np.maximum(gain, 0.0)


def improvement_of_secs(mean_log_secs: Floats, deviation: Floats, best_secs: float) -> Floats:
    """Expected improvement of the logarithm of throughput over an incumbent of ``best_secs`` (infinite: none).

    The gain is a log ratio: 0.1 means about 10% faster.
    """
    best = -math.log(best_secs) if 0 < best_secs < math.inf else -math.inf
    return expected_improvement(-np.asarray(mean_log_secs), deviation, best)


def throughput_of_secs(mean_log_secs: Floats, deviation: Floats, best_secs: float) -> Floats:
    """The mean itself, as throughput relative to the incumbent's: ``best_secs / exp(mu)``, shape ``(n,)``.

    Without an incumbent (``best_secs`` infinite, NaN or not positive) it is relative to one second. The deviation does
    not change the result, but must be valid.
    """
    gain, _, valid = checked(-np.asarray(mean_log_secs, dtype=np.float64), deviation)
    reference = math.log(best_secs) if 0 < best_secs < math.inf else 0.0
    with np.errstate(over="ignore"):
        return np.where(valid, np.exp(np.where(valid, gain, 0.0) + reference), 0.0)


def checked(mean: Floats, deviation: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return both as arrays, and a mask of the valid predictions: no NaN, no negative deviation, a mean above minus
    infinity. Raise ValueError if the shapes differ."""
    mean = np.asarray(mean, dtype=np.float64)
    deviation = np.asarray(deviation, dtype=np.float64)
    if mean.shape != deviation.shape:
        raise ValueError(f"mean {mean.shape} and deviation {deviation.shape} differ in shape")
    return mean, deviation, ~(np.isnan(mean) | np.isnan(deviation) | (deviation < 0) | np.isneginf(mean))


class Acquisition(Protocol):
    """Scores of candidates from a model's prediction: see the module's docstring."""

    @property
    def name(self) -> str:
        """The reason that a proposal gives."""
        ...

    def __call__(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """Scores ``(n,)`` of predictions ``(n,)``; ``best_secs``: the incumbent's cost, infinite without one.

        Never negative or NaN; 0 for a prediction that is NaN, has a negative deviation, or is infinitely slow. An empty
        array gives an empty array.
        """
        ...

    def energy(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """The energy that annealing minimises, ``(n,)``. It orders candidates as minus the scores do."""
        ...


@dataclass(frozen=True)
class ExpectedImprovement:
    """AdaTune equations 1 and 2: :func:`improvement_of_secs`."""

    name: ClassVar[str] = "ei"

    def __call__(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """See :class:`Acquisition`."""
        return improvement_of_secs(mean_log_secs, deviation, best_secs)

    def energy(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """See :class:`Acquisition`."""
        if not 0 < best_secs < math.inf:  # then improvements in separate arrays are not comparable
            return mean_log_secs
        return -self(mean_log_secs, deviation, best_secs)


@dataclass(frozen=True)
class PredictedMean:
    """The prediction itself: :func:`throughput_of_secs`."""

    name: ClassVar[str] = "mean"

    def __call__(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:
        """See :class:`Acquisition`."""
        return throughput_of_secs(mean_log_secs, deviation, best_secs)

    def energy(self, mean_log_secs: Floats, deviation: Floats, best_secs: float, /) -> Floats:  # noqa: ARG002
        """See :class:`Acquisition`: the log seconds, so that steps of annealing are ratios of seconds."""
        return mean_log_secs


def normal_cdf(z: Floats) -> Floats:
    """``Phi(z)``. SciPy is imported here, because it takes a third of a second to load, and only few of the processes
    that import the methods rank candidates."""
    from scipy.special import ndtr

    cumulated: Floats = ndtr(z)
    return cumulated
