"""How a run asks for its turn on a device that other runs of its cluster use too."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from actors.clients.calls import LOST, fetch, first_line
from policies.runs.cluster.turns import RunShare, Turn

_LOG = logging.getLogger(__name__)
_ASK_SECS = 10.0


class TurnClient:
    """Asks ``keeper`` (:class:`actors.turns.keeper.TurnKeeper`) for one device in the name of ``party``. It
    travels as a value. ``device``: the same for every run; ``pool``: see :meth:`policies.runs.cluster.turns.Turns.ask`.
    ``find``: finds the keeper anew where it is gone for good."""

    def __init__(self, find: Callable[[], Any], party: RunShare, device: str, pool: str) -> None:
        self._find = find
        self._keeper: Any = None
        self._party = party
        self._device = device
        self._pool = pool

    def ask(self) -> Turn:
        """Whether it is this run's turn. Where nobody answers it is: a device serves one client at a time anyhow, and
        no run stands still for want of somebody who keeps order."""
        try:
            turn: Turn = fetch(self._found.ask.remote(self._party, self._device, self._pool), _ASK_SECS, "take a turn")
        except LOST as error:
            self._lost(error)
            return Turn(True)
        return turn

    def let_go(self) -> None:
        """This run neither has nor wants the device any more."""
        try:
            fetch(self._found.let_go.remote(self._party.run_id, self._device), _ASK_SECS, "end a turn")
        except LOST as error:  # who says nothing has nothing, soon
            self._lost(error)

    @property
    def _found(self) -> Any:
        if self._keeper is None:
            self._keeper = self._find()
        return self._keeper

    def _lost(self, error: Exception) -> None:
        _LOG.warning("turns of device %s: %s", self._device, first_line(error))
        self._keeper = None
