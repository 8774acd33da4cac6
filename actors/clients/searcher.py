"""The client of a searcher."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from actors.clients import waiting
from actors.clients.base import RestartedClient, retrying
from actors.clients.calls import (
    LOST,
    WINDOW_WAIT_SECS,
    ask,
)
from actors.heartbeat import Heartbeat
from devices.host.quiet_windows.quiet_window import QuietWindow
from policies.runs.events import Proposed

_T = TypeVar("_T")
_START_SECS = 120.0
_READ_SECS = 3600.0
_MISSED_BEATS = 4
"""Missed heartbeats in a row after which a searcher counts as hanging. It shares its host with builders and devices."""


class SearcherClient(RestartedClient):
    """See :class:`actors.processes.searcher.Searcher`. ``window``: the quiet window that stops the searcher, None if
    its host has none. Seconds in which it is stopped do not count as silence."""

    def __init__(self, actor: Any, window: QuietWindow | None = None) -> None:
        super().__init__(actor)
        self._window = window
        self._is_lost = False

    async def start(self) -> None:
        """Wait until the searcher has read the records of earlier runs, which takes minutes for millions of records."""
        await self._is_there()
        await self._while_alive(ask(self._actor.start.remote(), _READ_SECS, "read the records of earlier runs"))

    async def propose(self, task_id: str, count: int, last_proposal: int) -> Proposed:
        """Return up to ``count`` new candidates of a task. After a loss, wait first for the process that takes over.

        ``last_proposal``: number of the task's last proposal that was received.
        """
        if self._is_lost:
            await self._is_there()
            self._is_lost = False
        working = ask(self._actor.propose.remote(task_id, count, last_proposal), WINDOW_WAIT_SECS, "propose candidates")
        try:
            return await self._while_alive(working)
        except LOST:
            self._is_lost = True
            raise

    async def forget(self) -> None:
        """See :meth:`actors.processes.searcher.Searcher.forget`."""
        await ask(self._actor.forget.remote(), WINDOW_WAIT_SECS, "forget what was proposed")

    def restart(self) -> None:
        self._is_lost = True
        super().restart()

    async def _is_there(self) -> None:
        """Wait until its process has started."""
        async for attempt in retrying(_START_SECS, waiting.clock_of(self._window)):
            with attempt:
                await self._beat()

    async def _while_alive(self, working: Awaitable[_T]) -> _T:
        clock = waiting.clock_of(self._window)
        return await waiting.while_alive(working, self._beat, _MISSED_BEATS, "the searcher", clock)

    async def _beat(self) -> Heartbeat:
        answer: Heartbeat = await ask(self._actor.beat.remote(), waiting.BEAT_SECS, "a sign of life")
        return answer
