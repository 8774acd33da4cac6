"""Virtual time: what happens lies in a heap by its time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator

from policies.runs import events as ev

Happening = ev.Event | Callable[[], None]


class Timeline:
    """``now``: seconds since the run began."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Happening]] = []
        self._order = itertools.count()

    def later(self, at: float, happening: Happening) -> None:
        heapq.heappush(self._heap, (at, next(self._order), happening))

    def after(self, secs: float, happening: Happening) -> None:
        self.later(self.now + secs, happening)

    def keep(self, wanted: Callable[[Happening], bool]) -> None:
        """Drop what would have happened, but the wanted."""
        self._heap = [each for each in self._heap if wanted(each[2])]
        heapq.heapify(self._heap)

    def go_on(self, wake: float | None) -> Happening | None:
        """Go on to what happens next, and return it: a ``Tick`` where nothing happens before ``wake``, None where
        nothing ever will."""
        if self._heap and (wake is None or self._heap[0][0] <= wake):
            at, _, happening = heapq.heappop(self._heap)
        elif wake is not None:
            at, happening = wake, ev.Tick()
        else:
            return None
        self.now = max(self.now, at)
        return happening

    def meanwhile(self, secs: float) -> Iterator[ev.Event]:
        """The events that come next, within so many seconds; it is then."""
        until = self.now + secs
        while self._heap and self._heap[0][0] <= until:
            at, _, event = self._heap[0]
            if callable(event):
                return
            heapq.heappop(self._heap)
            self.now = max(self.now, at)
            yield event
