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
    """See :class:`actors.processes.learner.Learner`. ``window``: as for :class:`SearcherClient`."""

    def __init__(self, actor: Any, window: QuietWindow | None = None) -> None:
        super().__init__(actor)
        self._window = window
        self.trained_unix_secs: float | None = None
        """Time of the last training of a model, as :meth:`failures` last read it. None before the first training."""

    def start(self) -> None:
        """Have the learner follow the records and train, without waiting for it."""
        self._actor.start.remote()

    async def failures(self) -> AsyncIterator[str]:
        """Yield each failure of the learner. The process has then ended or is ended, and another one starts again from
        the first record. After each failure in a row, the next look at the learner comes later."""
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
            with contextlib.suppress(*LOST):  # the start of another process is no failure
                async for attempt in retrying(_START_SECS, waiting.clock_of(self._window)):
                    with attempt:
                        await ask(self._actor.failure.remote(0.0), waiting.BEAT_SECS, "a sign of life")

    async def stream(self) -> AsyncIterator[dict[str, bytes]]:
        """Yield new models as they are published: their bytes, by the id of a task or the name of a device class. A
        learner that does not answer is asked again, for as long as necessary."""
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
        """Wait for an answer that is due after ``_FOLLOW_SECS``. It counts as lost ``_FOLLOW_SPARE_SECS`` later."""
        return await waiting.ask_by_clock(
            waiting.clock_of(self._window), reference, _FOLLOW_SECS + _FOLLOW_SPARE_SECS, what
        )
