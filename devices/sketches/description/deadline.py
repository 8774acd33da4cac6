"""Time limit of the description of one sketch."""

from __future__ import annotations

import time

from devices.sketches.description.undescribed import UndescribedError

DESCRIPTION_SECS = 10.0
"""Seconds of this thread's processor time (so that a busy machine leaves no more sketches undescribed) for each of the
two steps of a description: the replay of the trace, and the combinations of places."""


_EVERY = 16
"""Checks for each look at the clock, which can take a tenth of a millisecond: as long as the checked work."""


class Deadline:
    """A time limit that starts when it is made."""

    def __init__(self) -> None:
        self._end = time.thread_time() + DESCRIPTION_SECS
        self._checks = 0

    def check(self) -> None:
        """Raise :class:`UndescribedError` where the time is over."""
        self._checks += 1
        if self._checks % _EVERY == 1 and time.thread_time() > self._end:
            raise UndescribedError(f"its description takes more than {DESCRIPTION_SECS:g} s")
