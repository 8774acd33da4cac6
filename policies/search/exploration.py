"""Exploration: the random candidates of a batch (AdaTune section 4.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from policies.arrays import Floats
from policies.search.candidates import CandidateSet
from policies.search.draft import innermost_tiles
from policies.search.task_records import Proposal, TaskRecords


class Epsilon(Protocol):
    """The share of a batch that is drawn at random."""

    @property
    def plans(self) -> int:
        """Random candidates whose predictions tell the share; 0: it follows from the candidates that were offered."""
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
    """AdaTune equation 3 within bounds: see :func:`epsilon_of_secs`. AdaTune predicts 20 random candidates for it."""

    low: float = 0.0
    high: float = 1.0
    plans: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.high <= 1.0:
            raise ValueError(f"0 <= low <= high <= 1 is needed, got {self.low} and {self.high}")

    def share(self, mean_log_secs: Floats, deviation: Floats, best_secs: float) -> float:
        """See :class:`Epsilon`."""
        return epsilon_of_secs(mean_log_secs, deviation, best_secs, self.low, self.high)


@dataclass(frozen=True)
class Exploration:
    """Random candidates of a batch: their share and their origin."""

    epsilon: Epsilon
    """Share of random candidates."""
    within_draft: bool = False
    """True if random candidates are taken from the generator's offer first (:func:`untried`), then from the whole
    space."""


def contextual_epsilon(deviation: Floats, best: float, low: float = 0.0, high: float = 1.0) -> float:
    """AdaTune equation 3: share of random candidates, ``mean(sigma of unsampled plans) / Perf(best)``, clipped.

    ``deviation``: of performance, in the unit of ``best``; values that are not finite or negative are left out. With
    no deviation left, or a best that is not positive and finite, nothing is known: ``high``.
    """
    if not 0.0 <= low <= high <= 1.0:
        raise ValueError(f"0 <= low <= high <= 1 is needed, got {low} and {high}")
    deviation = np.asarray(deviation, dtype=np.float64)
    finite = deviation[np.isfinite(deviation) & (deviation >= 0)]
    if finite.size == 0 or not (0 < best < math.inf):
        return high
    return float(np.clip(finite.mean() / best, low, high))


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


def untried(
    offered: Sequence[CandidateSet], records: TaskRecords, count: int, rng: np.random.Generator
) -> list[Proposal]:
    """Draw up to ``count`` random candidates. Of every innermost tile that is neither measured nor pending the best
    candidate counts, and of these the more promising half."""
    choices = [(each, row) for each in offered for row in _untried_tiles(each, records)]
    choices.sort(key=lambda choice: float(choice[0].mean[choice[1]]))
    promising = choices[: max(len(choices) // 2, count)]
    return [
        promising[at][0].proposal(promising[at][1], "exploration") for at in rng.permutation(len(promising))[:count]
    ]


def _untried_tiles(offered: CandidateSet, records: TaskRecords) -> list[int]:
    """The best offered candidate of every innermost tile that was neither measured nor is pending."""
    sketch = offered.sketch
    tried_rows = np.concatenate([records.measured_rows(sketch), records.pending_rows(sketch)])
    ids = innermost_tiles(records.sketches[sketch], np.concatenate([offered.matrix, tried_rows]))
    tiles, tried = ids[: len(offered)], ids[len(offered) :]
    order = np.argsort(offered.mean, kind="stable")
    order = order[~np.isin(tiles[order], tried)]
    firsts: list[int] = order[np.unique(tiles[order], return_index=True)[1]].tolist()
    return firsts
