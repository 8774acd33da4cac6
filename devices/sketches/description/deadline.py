"""How long the description of one sketch may take."""

from __future__ import annotations

import time

from devices.sketches.description.loopnest import UndescribedError

DESCRIPTION_SECS = 10.0
"""Seconds of this thread's processor time (a machine that is busy with other work leaves no more sketches undescribed)
for each of the two steps of a description: the replay of the trace, and the combinations of places."""


class Deadline:
    """Starts when it is made."""

    def __init__(self) -> None:
        self._end = time.thread_time() + DESCRIPTION_SECS

    def check(self) -> None:
        """Raises :class:`UndescribedError` where the time is over."""
        if time.thread_time() > self._end:
            raise UndescribedError(f"its description takes more than {DESCRIPTION_SECS:g} s")
