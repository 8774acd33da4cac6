"""A thread that cuts a session whose calls take too long, or whose server gives no sign of life meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Seconds of a call after which its server is asked for a sign of life, every second.
_WATCHED_AFTER_SECS = 2.0
_PING_SECS = 1.0


@dataclass(eq=False, slots=True)
class GuardedCall:
    """A stretch of calls with a deadline. Times are monotonic seconds."""

    begun: float
    limit: float
    late: bool = False
    """True if the session was cut at the deadline."""
    silent: bool = False
    """True if the session was cut because the server gave no sign of life."""
    active: bool = True
    """True until the calls have ended, or the session is cut."""


class Watchdog:
    """Cuts a session when a guarded stretch of calls takes too long, or when the server gives no sign of life in a long
    one.

    One thread serves the whole session: starting one for every call would cost more than the call.

    Args:
        gives_sign_of_life: asks the server for a sign of life; its argument is the seconds to wait.
        cut: ends the session.
        silence_secs: seconds to wait for a sign of life.
    """

    def __init__(
        self, gives_sign_of_life: Callable[[float], bool], cut: Callable[[], None], silence_secs: float
    ) -> None:
        self._silence_secs = silence_secs
        self._gives_sign_of_life = gives_sign_of_life
        self._cut = cut
        self._changed = threading.Condition()
        self._guards: list[GuardedCall] = []
        self._ended = False
        self._wakes_at = 0.0
        threading.Thread(target=self._run, name="rpc-watchdog", daemon=True).start()

    @contextmanager
    def guarding(self, timeout_secs: float) -> Iterator[GuardedCall]:
        """Watch the calls of the block."""
        now = time.monotonic()
        guard = GuardedCall(now, now + timeout_secs)
        with self._changed:
            self._guards.append(guard)
            if guard.limit < self._wakes_at:
                self._changed.notify()
        try:
            yield guard
        finally:
            with self._changed:
                guard.active = False
                self._guards.remove(guard)

    def end(self) -> None:
        """Stop watching, and drop the references to the session's methods. TVM has at most 32 sessions, and a session
        that only the garbage collector can free may be kept for long."""
        with self._changed:
            self._ended = True
            self._gives_sign_of_life, self._cut = lambda _: True, lambda: None
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                next_limit = min((guard.limit for guard in self._guards if guard.active), default=now + _PING_SECS)
                self._wakes_at = min(now + _PING_SECS, max(now, next_limit))
                if not self._ended:
                    self._changed.wait(self._wakes_at - now)
                if self._ended:
                    return
                now = time.monotonic()
                active = [guard for guard in self._guards if guard.active]
                late = [guard for guard in active if now >= guard.limit]
                long = [guard for guard in active if now - guard.begun > _WATCHED_AFTER_SECS]
            silent = not late and bool(long) and not self._gives_sign_of_life(self._silence_secs)
            with self._changed:  # calls that have ended meanwhile are not cut
                overdue = [guard for guard in (long if silent else late) if guard.active]
                for guard in overdue:
                    guard.late, guard.silent = not silent, silent
                    guard.active = False
                if overdue:
                    self._cut()
