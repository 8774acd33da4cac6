"""Signals that ask a process to end, while Ray starts in it.

Ray installs handlers of its own on the way, in Python and in C++: a SIGTERM then ends the process with a stack of
native code, or without a word, and leaves its folder.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator

_ASKS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Let these signals wait until the end of the block, and restore the handlers that code in it has replaced. Does
    nothing outside of the main thread, which alone may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _ASKS_TO_END}
    # Threads that start in the block keep this mask: later signals are for the main thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ASKS_TO_END)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # else other code than Python's has set it
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_signals_through() -> None:
    """Undo the wait in a process that was forked in the block: it must hear when it is asked to end."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP))
