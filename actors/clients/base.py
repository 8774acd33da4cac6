"""What the clients of all actors have in common."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from tenacity import AsyncRetrying, before_sleep_log, retry_if_exception_type, wait_fixed

from actors.clients.calls import LOST, ask
from fleet_tune.base.errors import RecorderLostError

_LOG = logging.getLogger(__name__)
_RETRY_SECS = 1.0


class ActorClient:
    """``actor``: the handle of one that gives signs of life."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def beat(self) -> None:
        """See :mod:`actors.scheduling.heartbeats`."""
        await ask(self._actor.beat.remote(), None, "a sign of life")


class RestartedClient(ActorClient):
    """Of an actor that Ray starts again."""

    def restart(self) -> None:
        """End its process, which hangs or has failed; another one takes its place."""
        end_process(self._actor)


class BusyClient(RestartedClient):
    """Of one that does its work in a thread of its own, and gives signs of life beside it."""

    async def beat(self) -> None:
        """See :mod:`actors.scheduling.heartbeats`."""
        await ask(beating(self._actor), None, "a sign of life")


def end_process(actor: Any) -> None:
    """End the actor's process; Ray starts another one where the actor may restart."""
    import ray

    with contextlib.suppress(Exception):  # it may be gone by itself meanwhile
        ray.kill(actor, no_restart=False)


def beating(actor: Any) -> Any:
    """A sign of life that is asked for beside an actor's work."""
    return actor.beat.options(concurrency_group="beat").remote()


def patiently(most_secs: float = math.inf, clock: Callable[[], float] = time.monotonic) -> AsyncRetrying:
    """Again and again, a second after each loss; for ``most_secs`` of the clock, then with the error of the last."""
    began = clock()
    return AsyncRetrying(
        stop=lambda _: clock() - began >= most_secs,
        reraise=True,
        retry=retry_if_exception_type((*LOST, RecorderLostError)),
        wait=wait_fixed(_RETRY_SECS),
        before_sleep=before_sleep_log(_LOG, logging.WARNING),
    )
