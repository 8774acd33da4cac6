"""Timers of a run: names that are due at a second of the run."""

from __future__ import annotations

import heapq


class Timers:
    """Names, each with the second of the run at which it is due. A name may have several."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._pending: set[tuple[float, str]] = set()

    def at(self, secs: float, name: str) -> None:
        """Make ``name`` due at ``secs``. Code that is woken may compare ``now`` with this very number, but not with a
        difference, which may be rounded."""
        if (secs, name) not in self._pending:
            self._pending.add((secs, name))
            heapq.heappush(self._heap, (secs, name))

    def due(self, now: float) -> list[str]:
        """Remove the names whose time has come, and return each once."""
        names: dict[str, None] = {}
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            self._pending.discard(entry)
            names[entry[1]] = None
        return list(names)

    @property
    def next_secs(self) -> float | None:
        """Second at which the next name is due; None for none."""
        return self._heap[0][0] if self._heap else None
