"""Time limit of the description of one sketch."""

from __future__ import annotations

import time

from devices.sketches.description.undescribed import UndescribedError

DESCRIPTION_SECS = 10.0
"""Limit in seconds of this thread's processor time for each of the two steps of a description: the replay of the trace,
and the combinations of places. Processor time is used so that a busy machine leaves no more sketches undescribed than
an idle one."""


_EVERY = 16
"""The clock is read at one of so many checks. Reading it can take a tenth of a millisecond: as long as the checked
work."""


class Deadline:
    """A time limit that starts when the object is made."""

    def __init__(self) -> None:
        self._end = time.thread_time() + DESCRIPTION_SECS
        self._checks = 0

    def check(self) -> None:
        """Raise :class:`UndescribedError` if the time is over."""
        self._checks += 1
        if self._checks % _EVERY == 1 and time.thread_time() > self._end:
            raise UndescribedError(f"its description takes more than {DESCRIPTION_SECS:g} s")
