"""Quality of a ranking of measured candidates: Pruner's Top-k and the rank correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.datasets import Rows
from bench.result import BenchError
from fleet_tune.base.task_data import TaskData
from policies.cost_models.protocol import targets
from policies.cost_models.rank_quality import best_of_first, rank_correlation

Floats = NDArray[np.float64]

TOP = 5
TEST_SHARE = 5
"""One in this many candidates belongs to the test set of an in-domain model."""


@dataclass(frozen=True)
class Ranked:
    """Quality of a ranking of one task's candidates, by their measured times."""

    best_secs: float
    """Seconds of the best candidate."""
    first_secs: float
    """Seconds of the candidate that is ranked first."""
    top_secs: float
    """Seconds of the best among the five candidates that are ranked first."""
    correlation: float
    """Spearman's correlation with the measured order."""

    @staticmethod
    def of(scores: Floats, cost_secs: Floats) -> Ranked:
        """Return the quality of a ranking.

        ``scores`` ``(n,)``: lower is better, infinite for the worst. ``cost_secs`` ``(n,)``: measured seconds, infinite
        for a failure. A failure counts as twice as slow as the slowest success, so that one failure does not make a
        ranking useless.
        """
        secs = np.exp(targets(cost_secs))
        first, top = best_of_first(scores, secs, 1), best_of_first(scores, secs, TOP)
        return Ranked(float(secs.min()), first, top, correlation(scores, secs))

    def listed(self) -> list[float]:
        """Return the fields in their order: ``best_secs``, ``first_secs``, ``top_secs``, ``correlation``."""
        return [self.best_secs, self.first_secs, self.top_secs, self.correlation]


def correlation(one: Floats, other: Floats) -> float:
    """Return Spearman's rank correlation. Equal values share their mean rank. 0 if one series does not vary."""
    rho = rank_correlation(one, other)
    return 0.0 if math.isnan(rho) else rho


def parts(data: TaskData, seed: int) -> tuple[Rows, Rows]:
    """Return the rows to learn from, in random order, and the rows of the test set: a fifth of the candidates.

    Raise :class:`BenchError` if there are too few candidates.
    """
    if len(data) < 2 * TEST_SHARE:
        raise BenchError(f"{data.task.workload.name}: {len(data)} candidates are too few to split")
    order = np.random.default_rng([seed, 5]).permutation(len(data))
    size = len(data) // TEST_SHARE
    return order[size:], np.sort(order[:size])


def weighted_top_k(best_secs: Sequence[float], found_secs: Sequence[float], weights: Sequence[float]) -> float:
    """Return Pruner's equation 2 over the tasks ``i`` of a network: ``sum_i L_i* w_i / sum_i min_(j <= k) L_i,j w_i``.

    ``best_secs``: seconds of each task's best candidate. ``found_secs``: :func:`best_of_first` of each task.
    ``weights``: weight of each task.
    """
    return float(np.dot(best_secs, weights) / np.dot(found_secs, weights))
