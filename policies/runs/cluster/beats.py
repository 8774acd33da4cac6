"""When the processes of a run are asked for a sign of life.

Who works for all (the scheduler, the recorder, the learner, the searchers) is asked every ``least_secs``. Of builders
and devices there may be thousands, and one process asks them all, in about a millisecond for each: they are asked in
turn, ``MOST_A_SECOND`` of them at most. So ``n`` of them are asked every ``max(least_secs, n / MOST_A_SECOND)``
seconds, and one that hangs is noticed after that time and the seconds that an answer may take: up to a hundred of them
as soon as all others. Who works for the run meanwhile and ends is missed at once, by whoever waits for its answer.
"""

from __future__ import annotations

MOST_A_SECOND = 50.0


def every_secs(crowd: int, least_secs: float) -> float:
    """Seconds between two questions to each of so many builders and devices."""
    return max(least_secs, crowd / MOST_A_SECOND)


def first_secs(number: int, crowd: int, least_secs: float) -> float:
    """Seconds after the start at which the one with this ``number``, from 0 on, is asked first: all are spread evenly
    over the time between two questions."""
    return number / crowd * every_secs(crowd, least_secs)
