"""Timers of a run: names that are looked at again at a second of the run."""

from __future__ import annotations

import heapq


class Timers:
    """Names, each with the seconds at which it is to be looked at; a name may have several."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._pending: set[tuple[float, str]] = set()

    def at(self, secs: float, name: str) -> None:
        """Look at ``name`` at ``secs``. To compare with this very number later is safe; with a difference it is not."""
        if (secs, name) not in self._pending:
            self._pending.add((secs, name))
            heapq.heappush(self._heap, (secs, name))

    def due(self, now: float) -> list[str]:
        """The names whose time has come, each once, and forgotten here."""
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
