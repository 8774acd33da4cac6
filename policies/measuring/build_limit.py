"""The timeout of builds: if the builds of a task are quick, none of them gets much more time."""

from __future__ import annotations

import statistics
from collections import deque

FACTOR = 10.0
LEAST_SECS = 5.0
UNKNOWN_SECS = 60.0
"""Limit before the first build of a task has ended. Builds that a run cannot do without (oracles and finalists) have at
least this limit."""
_LAST_BUILDS = 255


class BuildLimit:
    """The limit of a task's builds: ten times the median of the last ones, at least five seconds."""

    def __init__(self) -> None:
        self._build_secs: deque[float] = deque(maxlen=_LAST_BUILDS)

    def observe(self, build_secs: float) -> None:
        """Take in the seconds of a build that succeeded; 0 if they are unknown."""
        if build_secs > 0:
            self._build_secs.append(build_secs)

    @property
    def secs(self) -> float:
        if not self._build_secs:
            return UNKNOWN_SECS
        return max(LEAST_SECS, FACTOR * statistics.median(self._build_secs))
