"""How good the order is in which a model puts candidates."""

from __future__ import annotations

import numpy as np

from policies.analysis.quantities import Floats


def top_k(predicted: Floats, cost_secs: Floats, k: int) -> float:
    """Pruner's Top-k (its equation 2) of one task: the best run time, over the best among the ``k`` candidates that are
    predicted fastest; 1 at best, 0 where none of these ran.

    ``predicted`` and ``cost_secs`` ``(n,)``, lower is better; a failure costs infinity. Ties in order. ValueError where
    no candidate ran.
    """
    best = float(cost_secs.min(initial=np.inf))
    if not np.isfinite(best):
        raise ValueError("no candidate ran")
    return best / float(cost_secs[np.argsort(predicted, kind="stable")[:k]].min())


def rank_correlation(one: Floats, other: Floats) -> float:
    """Spearman's rank correlation of two series ``(n,)``, equal values at the mean of their ranks; NaN where one of
    them does not vary."""
    first, second = _ranks(one), _ranks(other)
    if not first.std() or not second.std():
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Floats) -> Floats:
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2.0)[at.reshape(-1)]
