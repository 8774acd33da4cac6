"""The time budget of a run."""

from __future__ import annotations

from policies.measuring.shootout import reserve_secs
from policies.runs.times.timers import Timers


class TimeBudget:
    """Time for tuning and shoot-outs.

    ``secs``: length of both together; None for no limit. ``timers``: get the seconds at which a part of it is used
    up."""

    def __init__(self, secs: float | None, timers: Timers) -> None:
        self._secs = secs
        self._timers = timers
        # Seconds of the run at which the tuning and the run are over; None while the budget does not count.
        self._tuning_ends: float | None = None
        self._ends: float | None = None

    def begin(self, now: float, tasks: int) -> None:
        """Count the budget from now on, if it does not count yet. A part of it is kept for the shoot-outs of this
        number of ``tasks``."""
        if self._secs is None or self._ends is not None:
            return
        self._ends = now + self._secs
        self._tuning_ends = self._ends - reserve_secs(self._secs, tasks)
        for secs in (self._tuning_ends, self._ends):
            self._timers.at(secs, "time budget")

    def ends_secs(self, now: float) -> float | None:
        """Return the second of the run at which the budget is used up, as far as is known now; None without a
        budget."""
        return self._ends if self._secs is None or self._ends is not None else now + self._secs

    def is_over(self, now: float) -> bool:
        """Return true if the budget is used up."""
        return self._ends is not None and now >= self._ends

    def tuning_is_over(self, now: float) -> bool:
        """Return true if only the share of the shoot-outs is left."""
        return self._tuning_ends is not None and now >= self._tuning_ends
