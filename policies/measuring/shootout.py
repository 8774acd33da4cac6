"""The choice of the finalists of a task, which meet when its tuning ends.

The measurement of most candidates ended after a few hundredths of a second, minutes or hours ago. The few that may be
faster than the incumbent, as far as their costs tell, meet it in turn (:mod:`policies.measuring.duel`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MAX_FINALISTS = 5
# One measurement sees one placement of the tensors in memory. The pages on which they lie decide which data they evict
# from the caches: seen on a Zen 5 with pages of 4 KiB, the same kernel takes up to 10 or 20 % more or less from one
# allocation to the next, and varies by under 1 % within one. So single measurements cannot tell apart costs that are
# nearer than this, and every run of a duel allocates anew.
MIN_MARGIN = 0.08
MAX_MARGIN = 0.15


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The known cost of a candidate."""

    candidate_id: str
    cost_secs: float
    error: float
    """Standard error of the cost, as a share of it."""


def finalists(standings: Iterable[CostEstimate]) -> tuple[str, ...]:
    """Return the ids of the candidates between which a shoot-out decides, the best first; none if the costs decide.

    A candidate may still be the fastest if its cost is above the lowest by no more than twice the standard error of
    their difference (at least ``MIN_MARGIN``, at most ``MAX_MARGIN``). At most ``MAX_FINALISTS`` of these are chosen,
    those of the lowest cost.
    """
    ordered = sorted((each for each in standings if math.isfinite(each.cost_secs)), key=lambda each: each.cost_secs)
    if not ordered:
        return ()
    best = ordered[0]
    near = [each for each in ordered if each.cost_secs <= best.cost_secs * (1 + _margin(best, each))]
    near = near[:MAX_FINALISTS]
    return tuple(each.candidate_id for each in near) if len(near) > 1 else ()


def reserve_secs(time_budget_secs: float, tasks: int) -> float:
    """Return the seconds of a run that are kept for the shoot-outs at its end: one for each task, at most a
    twentieth."""
    return min(0.05 * time_budget_secs, 1.0 * tasks)


def _margin(one: CostEstimate, other: CostEstimate) -> float:
    """Twice the standard error of the difference of two costs, as a share of them, within the limits."""
    return min(MAX_MARGIN, max(MIN_MARGIN, 2 * math.hypot(one.error, other.error)))
