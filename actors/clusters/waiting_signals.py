"""Signals that ask a process to end while Ray starts in it.

During its start, Ray installs its own handlers, in Python and in C++. A SIGTERM would then end the process with a
native stack trace or without a message, and leave its folder behind. So signals are blocked until Ray has started. The
start takes a minute on a busy machine, so a blocked signal ends it as long as Ray waits for its servers in Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from unittest import mock

from fleet_tune.base.errors import StartInterruptedError

_ASKS_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECS = 0.1


class Start:
    """The start of Ray in this thread. A waiting signal ends it."""

    def __init__(self) -> None:
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        """Ray's servers that were started so far, by name."""
        self.asked = False
        """True once a signal has asked to end."""
        self._lock = threading.RLock()
        self._may_end = False
        self._thread = threading.get_ident()
        self._over = threading.Event()

    @contextlib.contextmanager
    def ends_with_signals(self) -> Iterator[None]:
        """Raise StartInterruptedError in the block, at whatever point it is, when a signal waits, unless :meth:`commit`
        was called before. To be used inside the block of :func:`signals_wait`."""
        ignored = {number for number in _ASKS_TO_END if signal.getsignal(number) is signal.SIG_IGN}  # by "nohup"
        watching = threading.Thread(target=self._watch, args=(set(_ASKS_TO_END) - ignored,), daemon=True)
        self._may_end = True
        watching.start()
        try:
            with mock.patch.object(threading.Thread, "start", self._starting_undivided(threading.Thread.start)):
                yield
        finally:
            self._over.set()
            self.commit()
            watching.join()

    def _starting_undivided(self, start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        """Wrap the start of a thread, so that no signal ends the start of Ray during it. Until a new thread runs, the
        interpreter gives it the id of the thread that starts it, and so also the error that is raised there. The new
        thread would end with that error, and the thread that starts it would wait for ever."""

        def started(thread: threading.Thread) -> None:
            with self.undivided() if threading.get_ident() == self._thread else contextlib.nullcontext():
                start(thread)

        return started

    @contextlib.contextmanager
    def undivided(self) -> Iterator[None]:
        """Let a signal end the start before or after the block, but not inside it."""
        with self._lock:
            yield

    def commit(self) -> None:
        """Let signals wait from here on. Raises StartInterruptedError if a signal has already come."""
        with self._lock:
            self._may_end = False
            if self.asked:
                _raise_in(self._thread, None)  # the error may not have been raised yet: take it back
                raise StartInterruptedError

    def end_servers(self) -> None:
        """End the servers that were started, and wait until they have ended."""
        for server in self.servers.values():
            server.kill()
        for server in self.servers.values():
            server.wait()

    def _watch(self, numbers: set[signal.Signals]) -> None:
        while not self._over.wait(_LOOK_SECS):
            if numbers & signal.sigpending():
                with self._lock:
                    if self._may_end:
                        self.asked = True
                        _raise_in(self._thread, StartInterruptedError)
                return


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Let signals that ask to end wait until the end of the block, and restore the handlers that code in the block has
    replaced. Does nothing outside the main thread, since only that thread may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _ASKS_TO_END}
    # Threads that start in the block keep this mask, so that later signals go to the main thread.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ASKS_TO_END)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # None: native code has set it
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_signals_through() -> None:
    """Unblock signals in a process that was forked in the block, so that it can be asked to end."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGHUP))


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Have the interpreter raise ``error`` in a thread at its next instruction; None takes that back."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
