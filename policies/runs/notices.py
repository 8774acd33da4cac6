"""Notices for people while a run goes on: the last few of its warnings."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from fleet_tune.base.results import Notice

MOST = 20
# A notice that is repeated within this time is counted, and not added again.
_AGAIN_SECS = 60.0


class Notices:
    """The last ``MOST`` notices of a run, in the order in which each was told for the first time. ``told``: the notices
    of an earlier process, which was lost."""

    def __init__(self, told: Sequence[Notice] = ()) -> None:
        self._kept: deque[Notice] = deque(told, maxlen=MOST)
        self._told = max((notice.number for notice in told), default=0)

    @property
    def last(self) -> tuple[Notice, ...]:
        return tuple(self._kept)

    def add(self, text: str, now: float) -> None:
        """Add a notice. ``now``: seconds since the run began."""
        for at, notice in enumerate(self._kept):
            if notice.text == text and now - notice.at_secs <= _AGAIN_SECS:
                self._kept[at] = replace(notice, at_secs=now, times=notice.times + 1)
                return
        self._told += 1
        self._kept.append(Notice(self._told, now, text))
