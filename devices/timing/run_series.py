"""The seconds of a run that nothing disturbs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

_SERIES = 10
_LEAST_RUNS, _MOST_RUNS = 20, 20_000
"""Limits of the runs of a series. There are fewer only if the budget does not allow more."""


def calm_secs(run: Callable[[int], Sequence[float]], first_secs: float, budget_secs: float) -> float:
    """Return the least of the median seconds of several series of runs.

    A virtual machine is slow for some seconds when its host moves its processors to cores with separate caches, or
    other guests use the caches: one series may be slow as a whole. The runs take about ``budget_secs``; there is at
    least one.

    Args:
        run: runs as often as it is told, and returns the seconds of each run.
        first_secs: seconds of a first run.
        budget_secs: seconds for all runs.
    """
    affordable = int(budget_secs / max(first_secs, 1e-9))
    runs = min(_MOST_RUNS, max(_LEAST_RUNS, affordable // _SERIES))
    series = max(1, min(_SERIES, affordable // runs))
    return min(statistics.median(run(max(1, min(runs, affordable)))) for _ in range(series))
