"""The shares of device classes in a limit of trials: a fast class does not use up what a slow one needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction


def share_of_each_task(
    limit: int, tasks: Mapping[str, int], used: Mapping[str, int], sharing: Collection[str]
) -> Fraction:
    """Return the share of each task of the classes that share a limit; 0 if nothing is left of it.

    Args:
        limit: limit of all trials.
        tasks: number of tasks, by class.
        used: trials that are made, given up and under way, by class.
        sharing: classes that can still use trials. A class that has used more than its share, before another class
            joined or in an earlier run, keeps it, and the others share the rest.
    """
    names = {name for name in sharing if tasks[name]}
    while names:
        left = limit - sum(count for name, count in used.items() if name not in names)
        share = Fraction(left, sum(tasks[name] for name in names))
        ahead = {name for name in names if used[name] > share * tasks[name]}
        if not ahead:
            return share
        names -= ahead
    return Fraction(0)
