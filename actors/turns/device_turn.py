"""The turn of one run on a device that other runs use too: waited for, kept while no other run is due, and released."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from policies.runs.cluster.turns import TurnStatus

_REQUEST_EVERY_SECS = 0.5  # while the run waits
_REPEAT_EVERY_SECS = 2.0  # while it has the device
_RESERVED_SECS = 10.0
"""Time for which the device is kept after the wait for a turn, until the work begins that needs the turn."""
_LOG = logging.getLogger(__name__)


class TurnRequester(Protocol):
    """Requests one device on behalf of one run: :class:`actors.turns.client.TurnClient`, or a stand-in of a test."""

    def request(self) -> TurnStatus: ...

    def release(self) -> None: ...


class DeviceTurn:
    """The turn of this run on one device.

    Args:
        requester: requests and releases the device.
        disconnect: leaves the device, so that other runs can connect to it. It is called in any thread, never while
            the device is used.
        sleep: waits between two requests.
    """

    def __init__(
        self, requester: TurnRequester, disconnect: Callable[[], None], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._requester = requester
        self._disconnect = disconnect
        self._sleep = sleep
        self._using = threading.RLock()
        self._depth = 0
        self._has = False
        self._is_fresh = False
        """True if the device was used since the last repeated request."""
        self._reserved_until = 0.0
        self._closed = threading.Event()
        self._repeating: threading.Thread | None = None

    def wait(self, most_secs: float) -> str:
        """Wait for the turn for ``most_secs`` at most. Return the title of the run that has the device then, or an
        empty text if this run has it."""
        deadline = time.monotonic() + most_secs
        while not (status := self._requester.request()).granted:
            if time.monotonic() >= deadline:
                return status.holder
            self._sleep(_REQUEST_EVERY_SECS)
        self._has, self._is_fresh = True, True
        self._reserved_until = time.monotonic() + _RESERVED_SECS
        if self._repeating is None:
            self._repeating = threading.Thread(target=self._repeat, name="turn", daemon=True)
            self._repeating.start()
        return ""

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Use the device alone; re-entrant. After the block, another run gets the device if it is due."""
        with self._using:
            while not self._depth and self.wait(_REPEAT_EVERY_SECS):
                pass
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self._is_fresh, self._reserved_until = True, 0.0
                    self._keep_or_release()

    def close(self) -> None:
        """Release the device for good, or stop waiting for it."""
        self._closed.set()
        self._has = False
        self._requester.release()

    def _keep_or_release(self, is_idle: bool = False) -> None:
        """Keep the unused device for the next work. Release it if another run is due, or has the device already because
        this run counted as lost. ``is_idle``: no work has come for a while, so that any run that waits may have it."""
        status = self._requester.request()
        if status.yield_after_use or (is_idle and status.yield_when_idle) or not status.granted:
            self._has = False
            self._disconnect()
            self._requester.release()

    def _repeat(self) -> None:
        while not self._closed.wait(_REPEAT_EVERY_SECS):
            try:
                if self._has:
                    self._repeat_once()
            except Exception:  # the next repetition may succeed, and without it others would wait for ever
                _LOG.exception("requesting the turn on a device again failed")

    def _repeat_once(self) -> None:
        """Repeat the request for the device. Release the device if it is not used and another run is due, or if it was
        not used since the last repetition and another run waits."""
        if time.monotonic() < self._reserved_until or not self._using.acquire(blocking=False):
            self._requester.request()
            return
        try:
            was_used, self._is_fresh = self._is_fresh, False
            if self._has:
                self._keep_or_release(is_idle=not was_used)
        finally:
            self._using.release()
