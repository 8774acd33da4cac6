"""Tasks that need no more trials, thanks to a store that several runs share.

A run spends its limits on all its tasks together, so that the part of each task is an even share. A task is *settled*
if the store has a verified record of it with the origin of this run's records, and some run has spent at least that
share on it: the same run again would find the same, and a run that asks for more goes on from there. If the records
have another origin, another version say, the task is *confirmed*: the best few candidates are its first trials, and its
last ones if one of them is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fleet_tune.base.domain import Limits

# A run ends a little before or after its limit, and trials come in batches.
_ENOUGH = 0.9
SEARCHED = ("converged", "exhausted")
"""First words of the reasons for which the search of a task ends by itself."""
CONFIRMED = "confirmed"
"""First word of the reason for which a task ends if its first trials confirm results of other runs."""


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a run's limits that one task gets."""

    secs: float | None
    """Seconds of tuning; None for no such limit."""
    trials: float | None
    """Trials; None for no such limit."""


def share_of(limits: Limits, tasks: int) -> Share:
    """Return the share of each of the ``tasks`` of a run with these limits."""
    of_each = [] if limits.task_trials is None else [float(limits.task_trials)]
    if limits.trials is not None:
        of_each.append(limits.trials / tasks)
    secs = None if limits.time_budget_secs is None else limits.time_budget_secs / tasks
    return Share(secs, min(of_each, default=None))


def covered(asked: Share, spent: Iterable[tuple[float, float]]) -> bool:
    """Return true if one of the efforts ``spent`` (seconds and trials) is at least what is ``asked``. One of the two
    limits is enough, since a run ends with the first that it reaches."""
    for secs, trials in spent:
        if asked.secs is not None and secs >= _ENOUGH * asked.secs:
            return True
        if asked.trials is not None and trials >= _ENOUGH * asked.trials:
            return True
    return False


def effort_of(
    elapsed_secs: float, new_trials: int, tasks: int, finish_reason: str, asked: Share, tried: bool
) -> tuple[float, float] | None:
    """Return the seconds and trials that a run has spent on one of its ``tasks``: an even share, or infinity if the
    search itself found that nothing more can be gained. A confirmed task counts as if what was ``asked`` had been spent
    on it.

    None for a task that was given up, and for a task without a trial in this run (not ``tried``): its devices were
    gone, say.
    """
    if finish_reason.startswith(SEARCHED):
        return math.inf, math.inf
    if finish_reason.startswith(CONFIRMED):
        return asked.secs or 0.0, asked.trials or 0.0
    if finish_reason or not tried:
        return None
    return elapsed_secs / tasks, new_trials / tasks
