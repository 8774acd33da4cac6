"""The speed of a device, taken from its probe, and the cost that follows from a measured time.

A device is not always as fast as it was: it heats up, its clock changes, others use its host. The probe, which always
does the same, runs before, between and after measurements. A kernel is assumed to follow it:

    speed = unit / probe        cost = seconds as measured * speed

The *unit* is a time of the probe that is chosen once for a device and a store of records. Its value does not matter: it
makes all costs in the store comparable, whenever they were measured. The *usual* time is the median of all probes of
the run, so that no single moment decides it. A device that is faster than usual is as good as any other.

The error of the speed has two parts: half of the change between the probes before and after; and, because a kernel does
not follow the probe exactly (one waits for memory, another computes), a share of the distance from the usual time.
"""

from __future__ import annotations

import bisect
import math

CHANGED = 0.1
"""The speed changed between two probes if the logarithms of their times differ by more than this."""
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
        """Add the time of a probe. Raise ValueError if it is not positive and finite."""
        if not (math.isfinite(secs) and secs > 0):
            raise ValueError(f"a probe of {secs} s says nothing")
        bisect.insort(self._ordered, secs)

    @property
    def usual_secs(self) -> float:
        """Median of all probes. Raise ValueError before the first."""
        if not self._ordered:
            raise ValueError("the probe has not run")
        # For an even number, the larger of the two in the middle, so that the median is a time that was measured.
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
