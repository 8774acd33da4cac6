"""The client of the scheduler."""

from __future__ import annotations

import contextlib
from typing import Any

from actors.clients.base import ActorClient
from actors.clients.calls import ask
from actors.clients.handles import ActorHandles
from fleet_tune.base.results import Progress
from policies.runs.events import Event

_START_SECS = 120.0
_TELL_SECS = 30.0
_PROGRESS_SECS = 10.0


class SchedulerClient(ActorClient):
    """See :class:`actors.scheduling.scheduler.Scheduler`. ``handles``: the registry of the run. An event that names an
    actor is sent with the actor's handle."""

    def __init__(self, actor: Any, handles: ActorHandles) -> None:
        super().__init__(actor)
        self._handles = handles

    async def started(self) -> None:
        """Wait until its process answers."""
        await ask(self._actor.progress.remote(), _START_SECS, "scheduler")

    async def tell(self, event: Event, deadline_secs: float = _TELL_SECS) -> bool:
        """See :meth:`actors.scheduling.scheduler.Scheduler.tell`."""
        telling = self._actor.tell.remote(event, self._handles.of(event))
        accepted: bool = await ask(telling, deadline_secs, f"tell the scheduler {type(event).__name__}")
        return accepted

    async def progress(self) -> Progress:
        """A snapshot for views and metrics."""
        progress: Progress = await ask(self._actor.progress.remote(), _PROGRESS_SECS, "progress")
        return progress

    async def run(self) -> None:
        """Tune. There is no deadline: the run's limits or :class:`policies.runs.events.StopRequested` end it."""
        await ask(self._actor.run.remote(), None, "the scheduler")

    def end(self) -> None:
        """End its process for good."""
        import ray

        with contextlib.suppress(Exception):  # the process may have ended meanwhile
            ray.kill(self._actor, no_restart=True)
