"""Quiet windows: on a host shared by builders and a device, a measurement has the host to itself.

Work on the host is stopped while a window is open (:mod:`devices.host.quiet_windows.process_pauser`): a window waits
for no build and no search. Work that cannot be stopped, because people or other machines wait for its process, is
short, and the window waits for it.

Lock files (:mod:`devices.host.quiet_windows.window_locks`) say whose turn it is. A process that waits for longer than a
moment tells people (:mod:`fleet_tune.base.waits`). A holder that somebody has stopped loses its turn.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from devices.host.children.child import ChildProcess
from devices.host.quiet_windows.process_pauser import (
    PausableProcess,
    PauseRegistration,
    ProcessPauser,
    running_clock,
    window_open_secs,
)
from devices.host.quiet_windows.window_locks import QuietTimeoutError, WindowLocks
from fleet_tune.base.errors import FleetTuneError, WindowFolderError
from fleet_tune.base.waits import TELL_SECS

__all__ = ["QuietTimeoutError", "QuietWindow", "WindowLostError"]


class WindowLostError(FleetTuneError):
    """The process that had the window was stopped, and others have taken the window: its measurements do not count."""

    def __init__(self) -> None:
        super().__init__("the process that measured was stopped, and its quiet window was given to others")


class QuietWindow:
    """The quiet window of one host, for any number of processes and threads that name the same ``path``.

    :meth:`working` and :meth:`quiet` are re-entrant within a thread: a device actor can hold one quiet window over
    several measurements that ask for one themselves. Raises WindowFolderError.

    Args:
        path: a folder on a local file system, created if missing, which nobody else may write to: processes that are
            listed there are sent signals.
        timeout_secs: time that :meth:`working` and :meth:`quiet` wait before they raise QuietTimeoutError.
        title: name of this process for people whose processes wait for it; empty for its command.
    """

    def __init__(self, path: str | Path, timeout_secs: float = 120.0, title: str = "") -> None:
        self.path = Path(path)
        self.timeout_secs = timeout_secs
        make_own_folder(self.path)
        self._held = threading.local()
        self._locks = WindowLocks(self.path, title)
        self._pausing = ProcessPauser(self.path)

    def __reduce__(self) -> tuple[type[QuietWindow], tuple[Path, float, str]]:
        return QuietWindow, (self.path, self.timeout_secs, self._locks.title)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Do short work that would disturb a measurement. A window waits for its end, and many processes may work at
        once. Inside :meth:`quiet` this does nothing."""
        if self._depth():
            with self._nested():
                yield
            return
        with self._locks.entered(fcntl.LOCK_SH, self.timeout_secs) as held:
            held.leave_turnstile()
            self._pausing.resume_abandoned()
            self._held.mode = fcntl.LOCK_SH
            with self._nested():
                yield

    def started(self, start: Callable[[], ChildProcess]) -> tuple[ChildProcess, PauseRegistration]:
        """Start a child process that windows stop, with all of its group, until the registration is closed. It starts
        when no window is open."""
        with self.working():
            child = start()
            try:
                return child, PauseRegistration(self.path, PausableProcess.of(child.pid, group=True))
            except BaseException:  # no window would stop it
                child.kill()
                raise

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let windows stop this whole process during the block. No person may wait for the process."""
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
        """Have the host to itself during the block: pausable processes are stopped, nobody else works, and no other
        measurement runs.

        Raises RuntimeError inside :meth:`working`.
        """
        if self._depth():
            if self._held.mode != fcntl.LOCK_EX:
                raise RuntimeError("a quiet window was asked for while working: it would wait for itself")
            with self._nested():
                yield
            return
        with self._locks.entered(fcntl.LOCK_EX, self.timeout_secs) as held:
            self._held.mode, self._held.generation = fcntl.LOCK_EX, held.generation
            with self._pausing.paused(), self._nested():
                yield

    def check(self) -> None:
        """Raise WindowLostError if others have taken this thread's window because this process was stopped."""
        if self._held.generation != self._locks.generation:
            raise WindowLostError

    def continue_abandoned(self) -> None:
        """Continue the processes that another process' window has stopped, if that process does not move. A process
        that no window stops calls this now and then: all processes that wait for the window may be stopped. Raises
        QuietTimeoutError."""
        others = [holder for holder in self._locks.holders() if not holder.is_this_process]
        if others and window_open_secs(self.path) >= TELL_SECS:
            with self.working():
                pass

    def _depth(self) -> int:
        return int(getattr(self._held, "depth", 0))

    @contextmanager
    def _nested(self) -> Iterator[None]:
        self._held.depth = self._depth() + 1
        try:
            yield
        finally:
            self._held.depth -= 1


def make_own_folder(folder: Path) -> None:
    """Make a folder that this user alone may enter, or use the one that is there.

    Its name can be guessed: raises WindowFolderError if somebody else has made it, or may write to it, or it is a link.
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
