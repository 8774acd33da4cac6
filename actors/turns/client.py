"""The client of the turn arbiter, for one run and one device."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from actors.clients.calls import LOST, fetch, first_line
from policies.runs.cluster.turns import RunShare, TurnStatus

_LOG = logging.getLogger(__name__)
_CALL_SECS = 10.0


class TurnClient:
    """Requests one device on behalf of a run. It is passed by value.

    Args:
        find_arbiter: finds the arbiter's actor. It is called again after a loss of the actor.
        run: the run.
        device: name of the device, the same for every run.
        pool: see :meth:`policies.runs.cluster.turns.TurnArbiter.request`.
    """

    def __init__(self, find_arbiter: Callable[[], Any], run: RunShare, device: str, pool: str) -> None:
        self._find_arbiter = find_arbiter
        self._found: Any = None
        self._run = run
        self._device = device
        self._pool = pool

    def request(self) -> TurnStatus:
        """Request the device. To be repeated while the run wants or has it. If the arbiter does not answer, the device
        counts as granted: a device serves one client at a time anyhow, and no run stops because the arbiter is lost."""
        try:
            status: TurnStatus = fetch(
                self._arbiter.request.remote(self._run, self._device, self._pool), _CALL_SECS, "take a turn"
            )
        except LOST as error:
            self._lost(error)
            return TurnStatus(True)
        return status

    def release(self) -> None:
        """Release the device, or stop waiting for it."""
        try:
            fetch(self._arbiter.release.remote(self._run.run_id, self._device), _CALL_SECS, "end a turn")
        except LOST as error:  # a claim that is not repeated expires
            self._lost(error)

    @property
    def _arbiter(self) -> Any:
        if self._found is None:
            self._found = self._find_arbiter()
        return self._found

    def _lost(self, error: Exception) -> None:
        _LOG.warning("turns of device %s: %s", self._device, first_line(error))
        self._found = None
