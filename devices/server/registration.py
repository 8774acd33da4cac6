"""Registration of a device server at a TVM RPC tracker, kept up whatever the tracker does meanwhile."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from devices.rpc.tracker import TrackerClient, TrackerError

# Seconds between two questions to the tracker: which of our match keys are unused? They also show that it is gone.
PING_SECS = 1.0
# Seconds after which a match key that was handed out and not used is replaced: its client has vanished (TVM's server
# does the same).
UNUSED_SECS = 6.0
_ANSWER_SECS = 5.0
_FIRST_RETRY_SECS, _LAST_RETRY_SECS = 0.25, 5.0


@dataclass(frozen=True, slots=True)
class TrackerAddress:
    """A tracker, and the key to register with."""

    host: str
    port: int
    key: str
    advertise: str | None = None
    """Host that the tracker tells clients; ``None`` for the address that the tracker sees."""


class TrackerRegistration:
    """Keeps a server on ``port`` registered at ``tracker``, on a thread of its own.

    Never fails: a tracker that is away is tried again for ever, and ``log`` gets a line when that begins and when it
    ends. The server calls :meth:`taken` when a session begins and :meth:`free` when it is over; while it is taken it
    stays listed at the tracker, but is not handed out.
    """

    def __init__(self, tracker: TrackerAddress, port: int, log: Callable[[str], None]) -> None:
        self._tracker = tracker
        self._port = port
        self._log = log
        self._changed = threading.Condition()
        self._free_at: float | None = time.monotonic()
        self._match_key = ""
        self._connection: TrackerClient | None = None
        threading.Thread(target=self._run, name="tracker", daemon=True).start()

    def accepts(self, key: str) -> bool:
        """Return true if ``key`` is the match key that the tracker hands out for us at present."""
        with self._changed:
            return bool(self._match_key) and key == self._match_key

    def taken(self) -> None:
        """Note that a session begins: its match key is used up."""
        with self._changed:
            self._free_at = None
            self._match_key = ""
            self._changed.notify()

    def free(self, after_secs: float = 0.0) -> None:
        """Note that the session is over, and offer another one after ``after_secs``. Within that time the same client
        may come back."""
        with self._changed:
            self._free_at = time.monotonic() + after_secs
            self._changed.notify()

    def close_inherited(self) -> None:
        """Close a forked session's copy of the connection, by which the tracker knows that the server lives."""
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        tracker = self._tracker
        pause_secs, told_away, told_here = _FIRST_RETRY_SECS, False, False
        while True:
            try:
                with TrackerClient(tracker.host, tracker.port, _ANSWER_SECS) as connection:
                    self._connection = connection
                    connection.announce(tracker.key, tracker.advertise, self._port)
                    if not told_here:
                        self._log(f"registered as {tracker.key!r} at the tracker {tracker.host}:{tracker.port}")
                    pause_secs, told_away, told_here = _FIRST_RETRY_SECS, False, True
                    self._keep_offering(connection)
            except TrackerError as error:
                if not told_away:
                    self._log(f"not registered: {error}; trying again until it answers")
                told_away, told_here = True, False
                threading.Event().wait(pause_secs)
                pause_secs = min(_LAST_RETRY_SECS, 2 * pause_secs)
            finally:
                self._connection = None
                with self._changed:
                    self._match_key = ""

    def _keep_offering(self, connection: TrackerClient) -> None:
        """Offer one match key after the other. Return when an offer has to be withdrawn: the caller then closes the
        connection, which withdraws it."""
        tracker = self._tracker
        offered, handed_out_at = "", 0.0
        while True:
            now = time.monotonic()
            used = self._is_used(offered)
            if not offered:
                offered, handed_out_at = self._new_offer(now), 0.0
                if offered:
                    connection.put(tracker.key, tracker.advertise, self._port, offered)
            pending = offered in connection.pending() if offered else bool(connection.pending())
            if used:
                if pending:
                    return  # a client came directly, and the tracker still thinks that we are free
                offered = ""
                continue
            if offered and not pending:
                handed_out_at = handed_out_at or now
                if now - handed_out_at > UNUSED_SECS:
                    offered = ""
                    continue
            self._wait_for_change(offered)

    def _is_used(self, offered: str) -> bool:
        """Return true if a session began with the match key ``offered``."""
        with self._changed:
            return bool(offered) and self._match_key != offered

    def _new_offer(self, now: float) -> str:
        """Return a fresh match key; empty while the server is taken."""
        with self._changed:
            if self._free_at is None or now < self._free_at:
                return ""
            # TVM's tracker finds the key of a lost server in front of the last colon.
            self._match_key = f"{self._tracker.key}:{secrets.token_hex(8)}"
            return self._match_key

    def _wait_for_change(self, offered: str) -> None:
        """Wait until the offer is used, another one is due, or the tracker has to be asked again."""
        with self._changed:
            if offered:
                if self._match_key == offered:
                    self._changed.wait(PING_SECS)
                return
            due_secs = PING_SECS if self._free_at is None else self._free_at - time.monotonic()
            if due_secs > 0:
                self._changed.wait(min(PING_SECS, due_secs))
