"""Quality of the order in which a model ranks candidates."""

from __future__ import annotations

import numpy as np

from policies.arrays import Floats


def best_of_first(predicted: Floats, cost_secs: Floats, k: int) -> float:
    """The best run time among the ``k`` candidates that are predicted fastest; infinite if none of these ran.

    ``predicted`` and ``cost_secs`` ``(n,)``, lower is better; a failure costs infinity. Of equal predictions, the first
    counts as faster.
    """
    return float(cost_secs[np.argsort(predicted, kind="stable")[:k]].min())


def top_k(predicted: Floats, cost_secs: Floats, k: int) -> float:
    """Pruner's Top-k (its equation 2) of one task: the best run time, divided by the best among the ``k`` candidates
    that are predicted fastest (:func:`best_of_first`); 1 at best, 0 if none of these ran. Raise ValueError if no
    candidate ran.
    """
    best = float(cost_secs.min(initial=np.inf))
    if not np.isfinite(best):
        raise ValueError("no candidate ran")
    return best / best_of_first(predicted, cost_secs, k)


def rank_correlation(one: Floats, other: Floats) -> float:
    """Spearman's rank correlation of two series ``(n,)``; equal values have the mean of their ranks. NaN if one of the
    series does not vary."""
    # This import takes two seconds, which only a caller of this function should pay.
    from scipy.stats import spearmanr

    if len(np.unique(one)) < 2 or len(np.unique(other)) < 2:
        return float("nan")
    return float(spearmanr(one, other).statistic)
