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
"""One candidate in so many is kept for the test of an in-domain model."""


@dataclass(frozen=True)
class Ranked:
    """A ranking of one task's candidates against what was measured."""

    best_secs: float
    """Seconds of the best candidate of all."""
    first_secs: float
    """Seconds of the candidate that is ranked first."""
    top_secs: float
    """Seconds of the best among the first five."""
    correlation: float
    """Spearman's, with the measured order."""

    @staticmethod
    def of(scores: Floats, cost_secs: Floats) -> Ranked:
        """``scores`` (n,): lower is better, infinite for the worst; ``cost_secs`` (n,): measured, infinite for a
        failure, which counts as twice as slow as the slowest success (a ranking is not to be void for one)."""
        secs = np.exp(targets(cost_secs))
        first, top = best_of_first(scores, secs, 1), best_of_first(scores, secs, TOP)
        return Ranked(float(secs.min()), first, top, correlation(scores, secs))

    def listed(self) -> list[float]:
        return [self.best_secs, self.first_secs, self.top_secs, self.correlation]


def correlation(one: Floats, other: Floats) -> float:
    """Spearman's rank correlation; equal values share their mean rank, 0 where all of one side are equal."""
    rho = rank_correlation(one, other)
    return 0.0 if math.isnan(rho) else rho


def parts(data: TaskData, seed: int) -> tuple[Rows, Rows]:
    """Rows to learn from, in random order, and rows of the test: a fifth of the candidates.

    Raises :class:`BenchError` where there are too few.
    """
    if len(data) < 2 * TEST_SHARE:
        raise BenchError(f"{data.task.workload.name}: {len(data)} candidates are too few to split")
    order = np.random.default_rng([seed, 5]).permutation(len(data))
    size = len(data) // TEST_SHARE
    return order[size:], np.sort(order[:size])


def weighted_top_k(best_secs: Sequence[float], found_secs: Sequence[float], weights: Sequence[float]) -> float:
    """Pruner's equation 2 over the tasks ``i`` of a network: ``sum_i L_i* w_i / sum_i min_(j <= k) L_i,j w_i``.

    ``best_secs``: of each task; ``found_secs``: of each its :func:`best_of_first`.
    """
    return float(np.dot(best_secs, weights) / np.dot(found_secs, weights))
