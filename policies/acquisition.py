"""Acquisition: what a candidate is expected to gain (AdaTune section 4.2).

Direction: everything here is **maximised**. Use throughput, or minus the log of seconds; :func:`improvement_of_secs`
converts a model's log seconds.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from policies.quantities import Floats

_INVERSE_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """AdaTune equations 1 and 2, maximising: shape ``(n,)``, not negative.

    ``EI = (mu - best) Phi(Z) + sigma phi(Z)`` with ``Z = (mu - best) / sigma`` where ``sigma > 0``, and
    ``max(0, mu - best)`` where ``sigma = 0``.

    Input that is not a number: a candidate whose mean or deviation is NaN, whose deviation is negative, or whose mean
    is minus infinity gains 0; a mean of plus infinity or an infinite deviation gains infinity. With ``best`` minus
    infinity or NaN (nothing measured) there is no improvement to speak of, and the mean itself ranks: the result is the
    mean's distance to the lowest finite mean. An empty array gives an empty array.
    """
    mean = np.asarray(mean, dtype=np.float64)
    deviation = np.asarray(deviation, dtype=np.float64)
    if mean.shape != deviation.shape:
        raise ValueError(f"mean {mean.shape} and deviation {deviation.shape} differ in shape")
    valid = ~(np.isnan(mean) | np.isnan(deviation) | (deviation < 0) | np.isneginf(mean))
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
        gain[usable] = np.where(uncertain, delta * ndtr(z) + sigma * density, np.maximum(delta, 0.0))
    gain[unbounded] = math.inf
    return np.maximum(gain, 0.0)


def improvement_of_secs(mean_log_secs: Floats, deviation: Floats, best_secs: float) -> Floats:
    """Expected improvement of the logarithm of throughput over an incumbent of ``best_secs`` (infinite: none).

    The gain is a log ratio: 0.1 means about 10% faster.
    """
    best = -math.log(best_secs) if 0 < best_secs < math.inf else -math.inf
    return expected_improvement(-np.asarray(mean_log_secs), deviation, best)


def contextual_epsilon(deviation: Floats, best: float, low: float = 0.0, high: float = 1.0) -> float:
    """AdaTune equation 3: share of random candidates, ``mean(sigma of unsampled plans) / Perf(best)``, clipped.

    ``deviation``: of performance, in the unit of ``best``; values that are not finite or negative are left out. With
    no deviation left, or a best that is not positive and finite, nothing is known: ``high``.
    """
    if not 0.0 <= low <= high <= 1.0:
        raise ValueError(f"0 <= low <= high <= 1 is needed, got {low} and {high}")
    deviation = np.asarray(deviation, dtype=np.float64)
    known = deviation[np.isfinite(deviation) & (deviation >= 0)]
    if known.size == 0 or not (0 < best < math.inf):
        return high
    return float(np.clip(known.mean() / best, low, high))


def epsilon_of_secs(
    mean_log_secs: Floats, deviation: Floats, best_secs: float, low: float = 0.0, high: float = 1.0
) -> float:
    """:func:`contextual_epsilon` for a model of log seconds: the deviation of throughput is ``throughput * sigma``."""
    if not 0 < best_secs < math.inf:
        return high
    with np.errstate(over="ignore", invalid="ignore"):
        throughput = np.exp(-np.asarray(mean_log_secs, dtype=np.float64))
        spread = throughput * np.asarray(deviation, dtype=np.float64)
    return contextual_epsilon(spread, 1.0 / best_secs, low, high)
