"""The client of the learner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from actors.clients import waiting
from actors.clients.base import RestartedClient, end_process, retrying
from actors.clients.calls import (
    LOST,
    ActorLostError,
    ActorTimeoutError,
    ask,
    error_line,
    first_line,
)
from devices.host.quiet_windows.quiet_window import QuietWindow

_START_SECS = 120.0
_FETCH_SECS = 30.0
_FOLLOW_SECS = 5.0
_FOLLOW_SPARE_SECS = 55.0
_FIRST_PAUSE_SECS, _LONGEST_PAUSE_SECS, _WELL_SECS = 1.0, 60.0, 600.0


class LearnerClient(RestartedClient):
    """See :class:`actors.processes.learner.Learner`. ``window``: as of :class:`SearcherClient`."""

    def __init__(self, actor: Any, window: QuietWindow | None = None) -> None:
        super().__init__(actor)
        self._window = window
        self.trained_unix_secs: float | None = None
        """When a model was last trained, as :meth:`failures` heard of it. None before."""

    def start(self) -> None:
        """Begin to follow the records and to train; not waited for."""
        self._actor.start.remote()

    async def failures(self) -> AsyncIterator[str]:
        """Yield each failure of the learner. Its process is then ended, and another one begins anew with the records, a
        little later each time."""
        clock = asyncio.get_running_loop().time
        pause_secs, last_at = 0.0, clock()
        while True:
            try:
                detail = await self._asked(self._actor.failure.remote(_FOLLOW_SECS), "learner")
                if not detail:
                    self.trained_unix_secs = await self._asked(self._actor.trained.remote(), "learner")
                    continue
                end_process(self._actor)
            except ActorLostError as error:  # Ray starts it again
                detail = first_line(error)
            except ActorTimeoutError as error:
                detail = first_line(error)
                end_process(self._actor)
            except Exception as error:
                detail = error_line(error)
                end_process(self._actor)
            pause_secs = 0.0 if clock() - last_at > _WELL_SECS else pause_secs
            pause_secs = min(_LONGEST_PAUSE_SECS, max(_FIRST_PAUSE_SECS, 2 * pause_secs))
            last_at = clock()
            yield detail
            await asyncio.sleep(pause_secs)
            with contextlib.suppress(*LOST):  # that another process takes its place is no failure
                async for attempt in retrying(_START_SECS, waiting.clock_of(self._window)):
                    with attempt:
                        await ask(self._actor.failure.remote(0.0), waiting.BEAT_SECS, "a sign of life")

    async def stream(self) -> AsyncIterator[dict[str, bytes]]:
        """New models as they are published: their bytes by the id of a task or the name of a device class. A learner
        that does not answer is asked again, for as long as it takes."""
        versions: dict[str, int] = {}
        while True:
            async for attempt in retrying():
                with attempt:
                    fresh = await self._asked(self._actor.follow.remote(versions, _FOLLOW_SECS), "follow the models")
                    models = {
                        key: await ask(weights, _FETCH_SECS, "fetch a model") for key, (_, [weights]) in fresh.items()
                    }
            versions |= {key: version for key, (version, _) in fresh.items()}
            if models:
                yield models

    async def _asked(self, reference: Any, what: str) -> Any:
        """Ask for an answer that is due after ``_FOLLOW_SECS``, and counts as lost well after that."""
        return await waiting.ask_by_clock(
            waiting.clock_of(self._window), reference, _FOLLOW_SECS + _FOLLOW_SPARE_SECS, what
        )
