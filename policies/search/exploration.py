"""Exploration: the random candidates of a batch (AdaTune section 4.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from policies.arrays import Floats


class Epsilon(Protocol):
    """The share of a batch that is drawn at random."""

    @property
    def plans(self) -> int:
        """Number of random candidates whose predictions determine the share; 0: the offered candidates determine it."""
        ...

    def share(self, mean_log_secs: Floats, deviation: Floats, best_secs: float) -> float:
        """Share of random candidates, in [0, 1]; the predictions ``(n,)`` are those of candidates not yet measured."""
        ...


@dataclass(frozen=True)
class FixedEpsilon:
    """The same share always: 0.05 in AutoTVM and Ansor."""

    plans: ClassVar[int] = 0
    epsilon: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.epsilon <= 1.0:
            raise ValueError(f"a share between 0 and 1 is needed, got {self.epsilon}")

    def share(self, mean_log_secs: Floats, deviation: Floats, best_secs: float) -> float:  # noqa: ARG002
        """See :class:`Epsilon`."""
        return self.epsilon


@dataclass(frozen=True)
class ContextualEpsilon:
    """AdaTune equation 3: see :func:`epsilon_of_secs`. AdaTune predicts 20 random candidates for it."""

    plans: int = 0

    def share(self, mean_log_secs: Floats, deviation: Floats, best_secs: float) -> float:
        """See :class:`Epsilon`."""
        return epsilon_of_secs(mean_log_secs, deviation, best_secs)


def contextual_epsilon(deviation: Floats, best: float) -> float:
    """AdaTune equation 3: share of random candidates, ``mean(sigma of unsampled plans) / Perf(best)``, at most 1.

    ``deviation``: of performance, in the unit of ``best``; values that are not finite or negative are left out. If no
    deviation is left, or ``best`` is not positive and finite, nothing is known, and the share is 1.
    """
    deviation = np.asarray(deviation, dtype=np.float64)
    finite = deviation[np.isfinite(deviation) & (deviation >= 0)]
    if finite.size == 0 or not (0 < best < math.inf):
        return 1.0
    return min(float(finite.mean() / best), 1.0)


def epsilon_of_secs(mean_log_secs: Floats, deviation: Floats, best_secs: float) -> float:
    """:func:`contextual_epsilon` for a model of log seconds: the deviation of throughput is ``throughput * sigma``."""
    if not 0 < best_secs < math.inf:
        return 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        throughput = np.exp(-np.asarray(mean_log_secs, dtype=np.float64))
        spread = throughput * np.asarray(deviation, dtype=np.float64)
    return contextual_epsilon(spread, 1.0 / best_secs)
