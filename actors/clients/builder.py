"""The client of a builder."""

from __future__ import annotations

from typing import Any

from actors.clients.base import BusyClient, beating
from actors.clients.calls import (
    WINDOW_WAIT_SECS,
    ask,
)
from devices.protocol import BuildFailure, BuildRequest

_THERE_SECS = 5.0


class BuilderClient(BusyClient):
    """See :class:`actors.processes.builder.Builder`."""

    def warm_up(self) -> None:
        """Start its worker process; not waited for."""
        self._actor.warm_up.remote()

    async def is_there(self) -> None:
        """Raises ActorLostError, ActorTimeoutError where no process has taken the place of a lost one yet."""
        await ask(beating(self._actor), _THERE_SECS, "a sign of life")

    async def build(self, request: BuildRequest) -> tuple[BuildFailure | None, Any]:
        """The failure, or None and the object reference of the artifact, which is not fetched."""
        failure_reference, artifact = self._actor.build.options(num_returns=2).remote(request)
        deadline_secs = request.timeout_secs + WINDOW_WAIT_SECS
        failure: BuildFailure | None = await ask(failure_reference, deadline_secs, "build")
        return failure, artifact
