"""The steps that this process is in, so that no step of a command is silent.

Code that begins a step enters it here; the progress of the command shows the newest one. Steps are only shown to
people: no decision depends on them.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator


class Activity:
    """The steps of one process. May be used from any thread."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._steps: dict[int, str] = {}

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Callable[[str], None]]:
        """Enter a step for the duration of the block. ``text``: a participle and its object, such as ``reading the
        network``. Yield a function that replaces the text."""
        number = next(self._numbers)

        def say(text: str) -> None:
            with self._lock:
                self._steps[number] = text

        say(text)
        try:
            yield say
        finally:
            with self._lock:
                del self._steps[number]

    @property
    def text(self) -> str:
        """Text of the step that was entered last; empty if there is none."""
        with self._lock:
            return self._steps[max(self._steps)] if self._steps else ""


ACTIVITY = Activity()
"""The steps of this process."""
