"""The turn of one run on a device that other runs use too: waited for, kept while nobody else is due, and given up."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from policies.runs.cluster.turns import Turn

_ASK_SECS = 0.5
_LOOK_SECS = 2.0  # while the device is this run's: whether somebody else is due
_RESERVED_SECS = 10.0  # between the wait for a turn and what it was waited for
_LOG = logging.getLogger(__name__)


class TurnRequester(Protocol):
    """Asks for one device, on behalf of one run: :class:`actors.turns.client.TurnClient`, or a stand-in of a test."""

    def ask(self) -> Turn: ...

    def let_go(self) -> None: ...


class DeviceTurn:
    """``leave``: leaves the device, so that others can connect to it; called in any thread, never while it is used."""

    def __init__(
        self, asker: TurnRequester, leave: Callable[[], None], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._asker = asker
        self._leave = leave
        self._sleep = sleep
        self._using = threading.RLock()
        self._depth = 0
        self._has = False
        self._is_fresh = False  # it was used since the last look
        self._reserved_until = 0.0
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
        self._has, self._is_fresh = True, True
        self._reserved_until = time.monotonic() + _RESERVED_SECS
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
                    self._is_fresh, self._reserved_until = True, 0.0
                    self._rest()

    def close(self) -> None:
        """Give the device up for good, or do not wait for it any more."""
        self._closed.set()
        self._has = False
        self._asker.let_go()

    def _rest(self, is_idle: bool = False) -> None:
        """The device is not used: it is kept for what comes next, unless somebody else is due, or has it because this
        run was thought to be gone. ``is_idle``: nothing has come for a while, and whoever waits may have it."""
        turn = self._asker.ask()
        if turn.wanted or (is_idle and turn.awaited) or not turn.mine:
            self._has = False
            self._leave()
            self._asker.let_go()

    def _look(self) -> None:
        while not self._closed.wait(_LOOK_SECS):
            try:
                if self._has:
                    self._look_once()
            except Exception:  # of the next look it may be well again, and without it others would wait for ever
                _LOG.exception("looking whose turn a device is failed")

    def _look_once(self) -> None:
        """Say again that the device is this run's, and give it up where it is not used and somebody else is due, or has
        not been used since the last look and somebody else waits."""
        if time.monotonic() < self._reserved_until or not self._using.acquire(blocking=False):
            self._asker.ask()
            return
        try:
            was_used, self._is_fresh = self._is_fresh, False
            if self._has:
                self._rest(is_idle=not was_used)
        finally:
            self._using.release()
