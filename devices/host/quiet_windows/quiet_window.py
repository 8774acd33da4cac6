"""Quiet windows: on a host shared by builders and a device, a measurement has the host to itself.

Work on the host is stopped while a window is open (:mod:`devices.host.quiet_windows.process_pauser`): a window waits
for no build and no search. Work that cannot be stopped, because people or other machines wait for its process, is
short, and the window waits for it.

Two lock files and flock(2), which the kernel releases when a process dies, however it dies:

- ``room``: work that a window must not disturb holds it shared, a measurement holds it exclusively;
- ``turnstile``: everybody passes it before entering the room. A measurement stays in it while it waits and measures, so
  workers that come later queue behind it, and a steady stream of them cannot starve it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devices.host.children.child import ChildProcess
from devices.host.quiet_windows.process_pauser import (
    ROOM,
    PausableProcess,
    PauseRegistration,
    ProcessPauser,
    running_clock,
)
from fleet_tune.base.errors import WindowFolderError


class QuietTimeoutError(TimeoutError):
    """The window was not free within the deadline: some process holds it for longer than it should."""


class QuietWindow:
    """The quiet window of one host, for any number of processes and threads that name the same ``path``.

    :meth:`working` and :meth:`quiet` are re-entrant within a thread: a device actor can hold one quiet window over
    several measurements that ask for one themselves. Raises WindowFolderError.

    Args:
        path: a folder on a local file system, created if missing, which nobody else may write to: processes that are
            listed there are sent signals.
        timeout_secs: time that :meth:`working` and :meth:`quiet` wait before they raise QuietTimeoutError.
    """

    def __init__(self, path: str | Path, timeout_secs: float = 120.0) -> None:
        self.path = Path(path)
        self.timeout_secs = timeout_secs
        _make_own(self.path)
        self._held = threading.local()
        self._pausing = ProcessPauser(self.path)

    def __reduce__(self) -> tuple[type[QuietWindow], tuple[Path, float]]:
        return QuietWindow, (self.path, self.timeout_secs)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Do short work that would disturb a measurement, and that a window waits for; many may work at once. Inside
        :meth:`quiet` it adds nothing."""
        if self._depth():
            with self._nested():
                yield
            return
        deadline = time.monotonic() + self.timeout_secs
        turnstile = self._lock("turnstile", fcntl.LOCK_EX, deadline)
        try:
            room = self._lock(ROOM, fcntl.LOCK_SH, deadline)
        finally:
            os.close(turnstile)
        try:
            self._pausing.resume_abandoned()
            self._held.mode = fcntl.LOCK_SH
            with self._nested():
                yield
        finally:
            os.close(room)

    def started(self, start: Callable[[], ChildProcess]) -> tuple[ChildProcess, PauseRegistration]:
        """Start a child process that windows stop, with all of its group, until the registration is closed. It starts
        when no window is open."""
        with self.working():
            child = start()
            return child, PauseRegistration(self.path, PausableProcess.of(child.pid, group=True))

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Do work of this process, which windows stop as a whole meanwhile. No person may wait for it."""
        with self.working():
            registration = PauseRegistration(self.path, PausableProcess.of(os.getpid(), group=False))
        try:
            yield
        finally:
            registration.close()

    def clock(self) -> float:
        """Return seconds of a clock that is stopped while a window is open."""
        return running_clock(self.path)

    def close(self) -> None:
        """End the guardian of this object's windows."""
        self._pausing.close()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Have the host for the block: pausable processes are stopped, nobody else works, and no other measurement
        runs.

        Raises RuntimeError inside :meth:`working`.
        """
        if self._depth():
            if self._held.mode != fcntl.LOCK_EX:
                raise RuntimeError("a quiet window was asked for while working: it would wait for itself")
            with self._nested():
                yield
            return
        deadline = time.monotonic() + self.timeout_secs
        turnstile = self._lock("turnstile", fcntl.LOCK_EX, deadline)
        try:
            room = self._lock(ROOM, fcntl.LOCK_EX, deadline)
            try:
                self._held.mode = fcntl.LOCK_EX
                with self._pausing.paused(), self._nested():
                    yield
            finally:
                os.close(room)
        finally:
            os.close(turnstile)

    def _depth(self) -> int:
        return int(getattr(self._held, "depth", 0))

    @contextmanager
    def _nested(self) -> Iterator[None]:
        self._held.depth = self._depth() + 1
        try:
            yield
        finally:
            self._held.depth -= 1

    def _lock(self, name: str, mode: int, deadline: float) -> int:
        """Return a descriptor of the lock file ``name``, locked; closing it unlocks."""
        descriptor = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        # flock has no timeout, and polling would disturb the measurement that holds the lock: a thread waits.
        waiter = _Waiter(descriptor, mode)
        if not waiter.wait(deadline - time.monotonic()):
            raise QuietTimeoutError(f"{self.path / name} was not free within {self.timeout_secs:g} s")
        return descriptor


def _make_own(folder: Path) -> None:
    """Make a folder that this user alone may enter, or use the one that is there.

    Its name can be guessed: raises WindowFolderError where somebody else has made it, or may write to it, or it is a
    link.
    """
    next_step = "remove it, or set TMPDIR to a folder of your own"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise WindowFolderError(
            f"the folder of quiet windows {folder} cannot be used: {error.strerror or error}", next_step
        ) from error
    wrong = ""
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is not a folder"
    elif found.st_uid != os.geteuid():
        wrong = "is another user's"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = "can be written to by other users"
    if wrong:
        raise WindowFolderError(f"the folder of quiet windows {folder} {wrong}", next_step)


class _Waiter:
    """A thread blocked in flock; after a timeout it gives the lock back as soon as it gets it."""

    def __init__(self, descriptor: int, mode: int) -> None:
        self._descriptor = descriptor
        self._mode = mode
        self._state = threading.Lock()
        self._locked = threading.Event()
        self._abandoned = False
        threading.Thread(target=self._run, name="quiet-window", daemon=True).start()

    def _run(self) -> None:
        try:
            fcntl.flock(self._descriptor, self._mode)
        finally:
            with self._state:
                if self._abandoned:
                    os.close(self._descriptor)
                else:
                    self._locked.set()

    def wait(self, timeout_secs: float) -> bool:
        """Return true if the lock was obtained in time; otherwise the descriptor belongs to the thread from now on."""
        if self._locked.wait(max(0.0, timeout_secs)):
            return True
        with self._state:
            if self._locked.is_set():
                return True
            self._abandoned = True
            return False
