"""Delay of an event loop."""

from __future__ import annotations

import asyncio
from collections import deque

_EVERY_SECS = 0.5
_KEPT = 60
"""Number of delays that are kept: those of the last half minute."""


class LoopLag:
    """Measures how much later than asked the event loop wakes a task."""

    def __init__(self) -> None:
        self._delays: deque[float] = deque(maxlen=_KEPT)

    @property
    def longest_secs(self) -> float:
        """The longest recent delay; 0 before the first."""
        return max(self._delays, default=0.0)

    async def run(self) -> None:
        """Measure for ever."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + _EVERY_SECS
            await asyncio.sleep(_EVERY_SECS)
            self._delays.append(max(0.0, clock() - due))
