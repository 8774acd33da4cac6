"""Whether a device is still as fast as when it joined, by its probe.

A device that heats up, or whose neighbour on the same host has begun to work, measures every candidate as slower than
it is. The probe, which always does the same, is run every few minutes:

- :attr:`Baseline.factor` is its time over what it was when the device joined. Beyond ``max_drift``, or below one part
  in that, the device is off.
- What was measured since the last check that found the device right, and until the next one that does, is marked with
  the factor. A marked cost never makes an incumbent, the search learns it divided by the factor, and if that would be
  among the best, the candidate is measured again (:func:`policies.measuring.shootout.finalists`).
- A device that is off by about the same in ``SETTLED_CHECKS`` checks in a row has not drifted but changed: that is its
  new baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_DRIFT = 1.2
SETTLED_CHECKS = 3
_STEADY = 0.05


@dataclass(frozen=True, slots=True)
class Baseline:
    """``secs``: the probe's time that counts as right; ``factor``: what the device is off by, 1 for nothing;
    ``off_checks``: checks in a row that found it off by about that."""

    secs: float
    factor: float = 1.0
    off_checks: int = 0

    @property
    def off(self) -> bool:
        return self.off_checks > 0


def checked(baseline: Baseline | None, probe_secs: float, max_drift: float = MAX_DRIFT) -> Baseline:
    """The baseline after the probe took ``probe_secs``; None before the first time.

    Raises ValueError for a time that is not positive, or a factor below 1.
    """
    if not (math.isfinite(probe_secs) and probe_secs > 0 and max_drift >= 1):
        raise ValueError(f"a probe time of {probe_secs} s, or a factor of {max_drift}, says nothing")
    if baseline is None:
        return Baseline(probe_secs)
    factor = probe_secs / baseline.secs
    if 1 / max_drift <= factor <= max_drift:
        return Baseline(baseline.secs)
    steady = baseline.off and abs(factor / baseline.factor - 1) <= _STEADY
    off_checks = baseline.off_checks + 1 if steady else 1
    return Baseline(probe_secs) if off_checks >= SETTLED_CHECKS else Baseline(baseline.secs, factor, off_checks)
