"""The speed of a device, taken from its probe, and the cost that follows from a measured time.

A device is not always as fast as it was: it heats up, its clock changes, others use its host. The probe, which always
does the same, runs before, between and after measurements. A kernel is assumed to follow it:

    speed = unit / probe        cost = seconds as measured * speed

The *unit* is a time of the probe that is chosen once for a device and a store of records, whatever it is worth: so all
costs there can be compared, whenever they were measured. What is usual is the median of all probes of the run, which no
single moment decides, and a device that is faster than usual is as good as any other.

How sure the speed is: by half of what it changed between the probes before and after; and, as a kernel does not follow
the probe exactly (one waits for memory, another computes), by a share of how far from usual it was.
"""

from __future__ import annotations

import bisect
import math

CHANGED = 0.1
"""Of two probes whose times differ by more than this (in logarithms) the speed changed in between."""
MISMATCH = 0.25
"""Error of a speed that is far from the usual one, as a share of that distance in logarithms."""


def changed(before_secs: float, after_secs: float) -> bool:
    """Return true if the speed changed between two probes."""
    return abs(math.log(after_secs / before_secs)) > CHANGED


class Speedometer:
    """The probes of one device in one run. ``unit_secs``: the probe's time at speed 1, None until it is known."""

    def __init__(self) -> None:
        self.unit_secs: float | None = None
        self._ordered: list[float] = []

    def probed(self, secs: float) -> None:
        """The probe took this long. ValueError for a time that is not positive and finite."""
        if not (math.isfinite(secs) and secs > 0):
            raise ValueError(f"a probe of {secs} s says nothing")
        bisect.insort(self._ordered, secs)

    @property
    def usual_secs(self) -> float:
        """Median of all probes. ValueError before the first."""
        if not self._ordered:
            raise ValueError("the probe has not run")
        # Of an even number the later one of the two in the middle: a time that there was.
        return self._ordered[len(self._ordered) // 2]

    def speed(self, probe_secs: float) -> float:
        """Return the speed as a multiple of the unit's; 1 while the unit is not known."""
        return 1.0 if self.unit_secs is None else self.unit_secs / probe_secs

    def between(self, before_secs: float, after_secs: float) -> tuple[float, float]:
        """The speed between two probes, and its standard error as a share of it."""
        middle_secs = math.sqrt(before_secs * after_secs)
        change = math.log(after_secs / before_secs) / 2
        mismatch = MISMATCH * math.log(middle_secs / self.usual_secs)
        return self.speed(middle_secs), math.hypot(change, mismatch)
