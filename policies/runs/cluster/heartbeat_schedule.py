"""The times at which the processes of a run are asked for a heartbeat.

The scheduler, recorder, learner and searchers are asked every ``least_secs``. Builders and devices may be thousands,
and one process asks them all, in about a millisecond for each: they are asked one after the other, at most
``MOST_PER_SECOND`` of them per second. So each of ``n`` is asked every ``max(least_secs, n / MOST_PER_SECOND)``
seconds. A hanging one is noticed after that time plus the seconds that an answer may take. Up to a hundred of them are
noticed as soon as all others. The end of a process that works for the run is noticed at once, by the caller that waits
for its answer.
"""

from __future__ import annotations

MOST_PER_SECOND = 50.0


def interval_secs(count: int, least_secs: float) -> float:
    """Return the seconds between two heartbeats of each of ``count`` builders and devices."""
    return max(least_secs, count / MOST_PER_SECOND)


def first_heartbeat_secs(number: int, count: int, least_secs: float) -> float:
    """Return the seconds after the start at which the process with this ``number``, from 0 on, is first asked. The
    first heartbeats are spread evenly over an interval."""
    return number / count * interval_secs(count, least_secs)
