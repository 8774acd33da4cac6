"""Counts of candidates that were given up because their processes were ended from outside."""

from __future__ import annotations

import enum
from collections import Counter

from fleet_tune.base.domain import Measurement
from fleet_tune.base.errors import BuildersLostError, DevicesLostError
from policies.runs.commands import Abort, Command


class Step(enum.Enum):
    """Steps of a candidate whose process may be ended from outside."""

    BUILT = "built"
    MEASURED = "measured"


class KillCounts:
    """Candidates given up in a row, by step. ``limit``: number of them at which the run ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row: Counter[Step] = Counter()

    def reset(self, step: Step) -> None:
        """Note that a candidate has got through the step."""
        self._in_a_row[step] = 0

    def add(self, step: Step, failure: Measurement, is_tuning: bool) -> list[Command]:
        """Count one more candidate that was given up. End the run if it is tuning and the limit is reached."""
        self._in_a_row[step] += 1
        if not is_tuning or self._in_a_row[step] < self._limit:
            return []
        problem = f"{self._in_a_row[step]} candidates in a row could not be {step.value}: {failure.detail}"
        next_step = (
            "see who ends the processes (where memory is short, the kernel's log says so); the same command resumes"
        )
        lost = BuildersLostError if step is Step.BUILT else DevicesLostError
        return [Abort(lost(problem, next_step))]
