"""The timeout of builds: a task whose builds are quick gives none of them much longer."""

from __future__ import annotations

import statistics
from collections import deque

FACTOR = 10.0
LEAST_SECS = 5.0
UNKNOWN_SECS = 60.0
"""Before the first build of a task has ended, and for what is needed whatever it takes."""
_LAST_BUILDS = 255


class BuildLimit:
    """The limit of a task's builds: ten times the median of the last ones, at least five seconds. ``given_secs``: what
    the user has set in its place."""

    def __init__(self, given_secs: float | None = None) -> None:
        self._given_secs = given_secs
        self._build_secs: deque[float] = deque(maxlen=_LAST_BUILDS)

    def observe(self, build_secs: float) -> None:
        """A build succeeded in so many seconds; 0 where that is unknown."""
        if build_secs > 0:
            self._build_secs.append(build_secs)

    @property
    def secs(self) -> float:
        if self._given_secs is not None:
            return self._given_secs
        if not self._build_secs:
            return UNKNOWN_SECS
        return max(LEAST_SECS, FACTOR * statistics.median(self._build_secs))
