"""Quantiles of Student's t, to the three decimals of printed tables: a decision depends on no later digit."""

from __future__ import annotations

import functools


@functools.cache
def t_quantile(probability: float, samples: int) -> float:
    """Return the one-sided quantile of the mean of ``samples`` samples, which has ``samples - 1`` degrees of
    freedom."""
    # Imported here: processes that own a device need it only for a duel. scipy.stats.t takes much longer to import.
    from scipy.special import stdtrit

    return round(float(stdtrit(samples - 1, probability)), 3)
