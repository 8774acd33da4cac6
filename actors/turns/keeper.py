"""The actor of a cluster that knows whose turn each device is; all of its runs ask the same one."""

from __future__ import annotations

import time
from typing import Any

from actors.clients.calls import remote_actor
from policies.runs.cluster.turns import RunShare, Turn, Turns

# The last part changes with what is asked and answered: runs of two versions of it do not know of each other.
_NAME, _NAMESPACE = "fleet-tune-turns-1", "fleet-tune"


class TurnKeeper:
    """See :class:`policies.runs.cluster.turns.Turns`. It knows nothing that runs do not say again within seconds, so
    that another process takes its place at any time."""

    def __init__(self) -> None:
        self._turns = Turns()

    async def ask(self, party: RunShare, device: str, pool: str) -> Turn:
        return self._turns.ask(party, device, pool, time.monotonic())

    async def let_go(self, run_id: str, device: str) -> None:
        self._turns.let_go(run_id, device, time.monotonic())


def turn_keeper() -> Any:
    """The one of this cluster, which is started where there is none. It belongs to no run and stays for the next ones:
    an idle process."""
    return remote_actor(
        TurnKeeper,
        restarts=-1,
        concurrency=256,
        name=_NAME,
        namespace=_NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
    ).remote()
