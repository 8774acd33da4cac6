"""The turn of one run on a device that other runs use too: waited for, kept while nobody else is due, and given up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from policies.runs.turns import Turn

_ASK_SECS = 0.5
_LOOK_SECS = 2.0  # while the device is this run's: whether somebody else is due


class Asker(Protocol):
    """Asks for one device, on behalf of one run: :class:`actors.clients.turns.TurnClient`, or a stand-in of a test."""

    def ask(self) -> Turn: ...

    def let_go(self) -> None: ...


class DeviceTurn:
    """``leave``: leaves the device, so that others can connect to it; called in any thread, never while it is used."""

    def __init__(self, asker: Asker, leave: Callable[[], None], sleep: Callable[[float], None] = time.sleep) -> None:
        self._asker = asker
        self._leave = leave
        self._sleep = sleep
        self._using = threading.RLock()
        self._depth = 0
        self._has = False
        self._closed = threading.Event()
        self._looking: threading.Thread | None = None

    def wait(self, most_secs: float) -> str:
        """Wait until it is this run's turn, for so long at most; the title of the run that has the device by then,
        empty where it is this one's."""
        deadline = time.monotonic() + most_secs
        while not (turn := self._asker.ask()).mine:
            if time.monotonic() >= deadline:
                return turn.behind
            self._sleep(_ASK_SECS)
        self._has = True
        if self._looking is None:
            self._looking = threading.Thread(target=self._look, name="turn", daemon=True)
            self._looking.start()
        return ""

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """The device for oneself; re-entrant. Whoever is due has it afterwards."""
        with self._using:
            while not self._depth and self.wait(_LOOK_SECS):
                pass
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._rest()

    def close(self) -> None:
        """Give the device up for good."""
        self._closed.set()
        if self._has:
            self._has = False
            self._asker.let_go()

    def _rest(self) -> None:
        """The device is not used: it is kept, unless somebody else is due, or has it because this run was thought to be
        gone."""
        turn = self._asker.ask()
        if turn.wanted or not turn.mine:
            self._has = False
            self._leave()
            self._asker.let_go()

    def _look(self) -> None:
        """Say again that the device is this run's, and give it up where it is not used and somebody else is due."""
        while not self._closed.wait(_LOOK_SECS):
            if not self._has:
                continue
            if self._using.acquire(blocking=False):
                try:
                    if self._has:
                        self._rest()
                finally:
                    self._using.release()
            else:
                self._asker.ask()
