"""The actor of a cluster that decides which run has each device; all runs of the cluster ask the same one."""

from __future__ import annotations

import time
from typing import Any

from actors.clients.calls import remote_actor
from policies.runs.cluster.turns import RunShare, TurnArbiter, TurnStatus

# The number changes whenever the methods or their types change. Runs of versions that differ in them do not know of
# each other.
_NAME, _NAMESPACE = "fleet-tune-turns-2", "fleet-tune"


class TurnArbiterActor:
    """See :class:`policies.runs.cluster.turns.TurnArbiter`. Runs repeat all their requests within seconds, so that
    another process may replace it at any time."""

    def __init__(self) -> None:
        self._arbiter = TurnArbiter()

    async def request(self, run: RunShare, device: str, pool: str) -> TurnStatus:
        """See :meth:`policies.runs.cluster.turns.TurnArbiter.request`."""
        return self._arbiter.request(run, device, pool, time.monotonic())

    async def release(self, run_id: str, device: str) -> None:
        """See :meth:`policies.runs.cluster.turns.TurnArbiter.release`."""
        self._arbiter.release(run_id, device, time.monotonic())


def turn_arbiter() -> Any:
    """Return the arbiter of this cluster. Start it if there is none. It belongs to no run and stays for later ones, as
    an idle process."""
    return remote_actor(
        TurnArbiterActor,
        restarts=-1,
        concurrency=256,
        name=_NAME,
        namespace=_NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
    ).remote()
