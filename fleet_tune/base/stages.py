"""Work of the stages of a run: candidates in progress, done and failed, with times as histograms."""

from __future__ import annotations

import enum
from bisect import bisect_left
from dataclasses import dataclass, field

DURATION_BOUNDS = (*(float(f"{factor}e{power}") for power in range(-6, 2) for factor in (1, 2, 5)), 100.0)
"""Upper bounds of the buckets in seconds, from a microsecond to 100 seconds. One more bucket counts longer
durations."""


class Stage(enum.StrEnum):
    """Stages that a candidate goes through."""

    SEARCH = "search"
    BUILD = "build"
    MEASURE = "measure"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class DurationHistogram:
    """Durations by bucket. By default there is none."""

    counts: tuple[int, ...] = (0,) * (len(DURATION_BOUNDS) + 1)
    """Number of durations in each bucket of :data:`DURATION_BOUNDS`, and of longer ones."""
    total_secs: float = 0.0
    """Sum of the durations."""


class DurationCounter:
    """Counts durations by bucket."""

    def __init__(self) -> None:
        self._counts = [0] * (len(DURATION_BOUNDS) + 1)
        self._total_secs = 0.0

    def add(self, secs: float) -> None:
        """Count a duration."""
        self._counts[bisect_left(DURATION_BOUNDS, secs)] += 1
        self._total_secs += secs

    @property
    def histogram(self) -> DurationHistogram:
        """All durations until now."""
        return DurationHistogram(tuple(self._counts), self._total_secs)


@dataclass(frozen=True, slots=True)
class StageProgress:
    """State of one stage. All numbers count candidates since the process of the scheduler began."""

    begun: int = 0
    done: int = 0
    """Number of candidates that left the stage for the next one."""
    failed: int = 0
    """Number of candidates that failed in the stage."""
    returned: int = 0
    """Number of candidates that left the stage without a result: the search was asked for them and did not find them,
    or they will be measured later."""
    durations: DurationHistogram = field(default_factory=DurationHistogram)
    """Seconds of each proposal, build, batch on a device, or commit."""
    waits: DurationHistogram = field(default_factory=DurationHistogram)
    """Seconds that each candidate waited between the stage before and this one."""

    @property
    def in_progress(self) -> int:
        """Number of candidates in the stage now."""
        return self.begun - self.done - self.failed - self.returned
