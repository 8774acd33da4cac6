"""The waits of this process for other processes, so that no wait is silent.

Code that waits enters the wait here; the heartbeat of the process, or the progress of the command, shows it to people
(:mod:`actors.scheduling.heartbeats`).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

TELL_SECS = 2.0
"""Seconds after which a wait is shown to people. Heartbeats come every two seconds, so that people see a wait within
five."""
_MOST_LINES = 20


@dataclass(frozen=True, slots=True)
class ProcessWait:
    """A wait of a process for another one."""

    what: str
    """Noun for what is waited for."""
    whom: str
    """Process that has the awaited thing, in words."""
    secs: float
    """Seconds of the wait so far."""

    @property
    def text(self) -> str:
        """The wait in words, without its length."""
        return f"{self.what}, which {self.whom} has"

    @property
    def text_so_far(self) -> str:
        """The wait in words, with its length."""
        return f"{self.text} ({self.secs:.0f} s so far)"


@dataclass(frozen=True, slots=True)
class Line:
    """A line for people."""

    number: int
    """Number of the line in this process. Numbers only grow."""
    text: str


class WaitBoard:
    """The waits of one process. May be used from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waits: dict[int, tuple[str, str, float]] = {}
        self._lines: deque[Line] = deque(maxlen=_MOST_LINES)

    @contextlib.contextmanager
    def entered(self, what: str, whom: str = "") -> Iterator[Callable[[str], None]]:
        """Enter a wait for the duration of the block. ``what``: noun for what is waited for; ``whom``: the process that
        has it, in words. Yield a function that sets ``whom``. A wait without it is not shown."""
        with self._lock:
            number = next(self._numbers)
            self._waits[number] = (what, whom, self._clock())

        def wait_for(whom: str) -> None:
            with self._lock:
                self._waits[number] = (what, whom, self._waits[number][2])

        try:
            yield wait_for
        finally:
            with self._lock:
                del self._waits[number]

    def add_line(self, text: str) -> None:
        """Tell people something in one line."""
        with self._lock:
            self._lines.append(Line(next(self._numbers), text))

    @property
    def waits(self) -> tuple[ProcessWait, ...]:
        """The waits for other processes that take longer than :data:`TELL_SECS`."""
        with self._lock:
            now = self._clock()
            found = [ProcessWait(what, whom, now - since) for what, whom, since in self._waits.values()]
        return tuple(each for each in found if each.whom and each.secs >= TELL_SECS)

    @property
    def lines(self) -> tuple[Line, ...]:
        """The last lines."""
        with self._lock:
            return tuple(self._lines)


WAITS = WaitBoard()
"""The waits of this process."""
