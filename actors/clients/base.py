"""The common part of the clients of all actors."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from tenacity import AsyncRetrying, before_sleep_log, retry_if_exception_type, wait_fixed

from actors.clients.calls import LOST, ask
from actors.heartbeat import Heartbeat
from fleet_tune.base.errors import RecorderLostError

_LOG = logging.getLogger(__name__)
_RETRY_SECS = 1.0


class ActorClient:
    """The client of an actor that answers heartbeats. ``actor``: its handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def beat(self) -> Heartbeat:
        """See :mod:`actors.scheduling.heartbeats`."""
        answer: Heartbeat = await ask(self._actor.beat.remote(), None, "a sign of life")
        return answer


class RestartedClient(ActorClient):
    """The client of an actor that Ray starts again."""

    def restart(self) -> None:
        """End the actor's process, which hangs or has failed. Ray starts another one."""
        end_process(self._actor)


class BusyClient(RestartedClient):
    """The client of an actor that works in one thread and answers heartbeats in another one."""

    async def beat(self) -> Heartbeat:
        """See :mod:`actors.scheduling.heartbeats`."""
        answer: Heartbeat = await ask(request_beat(self._actor), None, "a sign of life")
        return answer


def end_process(actor: Any) -> None:
    """End the actor's process. Ray starts another one if the actor may restart."""
    import ray

    with contextlib.suppress(Exception):  # the process may have ended meanwhile
        ray.kill(actor, no_restart=False)


def request_beat(actor: Any) -> Any:
    """Request a heartbeat, which is answered beside the actor's work."""
    return actor.beat.options(concurrency_group="beat").remote()


def retrying(most_secs: float = math.inf, clock: Callable[[], float] = time.monotonic) -> AsyncRetrying:
    """Retry a call one second after each loss of its actor, for ``most_secs`` of the clock. Then raise the last
    error."""
    began = clock()
    return AsyncRetrying(
        stop=lambda _: clock() - began >= most_secs,
        reraise=True,
        retry=retry_if_exception_type((*LOST, RecorderLostError)),
        wait=wait_fixed(_RETRY_SECS),
        before_sleep=before_sleep_log(_LOG, logging.WARNING),
    )
