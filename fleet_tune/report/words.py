"""Words that all reports share."""

from __future__ import annotations

import math
from collections.abc import Sequence

NONE = "–"
_NAMES = 3


def format_secs(secs: float | None) -> str:
    """Return a duration with its unit and about four digits: ``1.203 ms``; a dash for None and infinity."""
    if secs is None or not math.isfinite(secs):
        return NONE
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if secs >= size:
            value = secs / size
            return f"{value:.{3 if value < 10 else 2 if value < 100 else 1}f} {unit}"
    return f"{secs / 1e-9:.0f} ns"


def estimate_text(device_class: str, secs: float, missing: int, tasks: int, label: str = "") -> str:
    """Return the estimated latency of a network on a device class in words, and the number of tasks that it lacks."""
    if math.isfinite(secs):
        without = f" without {missing} small task{'' if missing == 1 else 's'}" if missing else ""
        return f"{label}{format_secs(secs)} on {device_class}{without}"
    return f"{missing} of {tasks} task{'' if tasks == 1 else 's'} without a result on {device_class}"


def named(names: Sequence[str]) -> str:
    """Return the first few of many names, and the number of the others."""
    return ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")
