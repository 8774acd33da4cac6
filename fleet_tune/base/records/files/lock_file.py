"""Lock files that contain the process id of their holder. The kernel frees a lock when its process ends, in whatever
way."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from fleet_tune.base.processes import holder_text, process_text
from fleet_tune.base.waits import WAITS

_POLL_SECS = 0.02
# The locks of all processes, by device and inode: see proc_locks(5).
_LOCKS = Path("/proc/locks")


class LockedError(Exception):
    """Another process holds the lock. ``owner``: its id, as far as it is known."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner

    @property
    def text(self) -> str:
        """The owner in words, with its command."""
        return process_text(int(self.owner)) if self.owner.isdigit() else f"process {self.owner}"

    @property
    def who(self) -> str:
        """The owner in a few words, and how to continue it if somebody has stopped it."""
        return holder_text(int(self.owner)) if self.owner.isdigit() else f"process {self.owner}"


def take_lock(path: Path) -> int:
    """Lock the file ``path``, which is made if it is missing, and write the id of this process into it. Return the
    descriptor for :func:`release_lock`. Raise :class:`LockedError` without a wait if another process has the lock;
    OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(path, descriptor):  # its owner removed it between the two lines above
                os.close(descriptor)
                continue
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
            os.close(descriptor)
            raise LockedError(owner) from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def is_locked(path: Path) -> bool:
    """Return true if a process of this machine holds the lock of the file ``path``. The lock is not taken to find out,
    because a run that begins at that moment would be refused."""
    try:
        inode, locks = path.stat().st_ino, _LOCKS.read_text()
    except OSError:
        return False
    return any(f":{inode} " in line and " FLOCK " in line for line in locks.splitlines())


def release_lock(descriptor: int) -> None:
    """Free the lock, even if a process that another thread has just forked still has the descriptor. Closing the
    descriptor alone would leave the file locked until that process executes its program."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def wait_for_lock(path: Path, what: str, most_secs: float) -> int:
    """Take a lock as :func:`take_lock` does, but wait for other processes for at most ``most_secs``. ``what``: noun for
    what is locked, by which people are told of the wait."""
    deadline = time.monotonic() + most_secs
    with WAITS.entered(what) as wait_for:
        while True:
            try:
                return take_lock(path)
            except LockedError as error:
                if time.monotonic() >= deadline:
                    raise
                wait_for(error.text)
                time.sleep(_POLL_SECS)


def _is_at(path: Path, descriptor: int) -> bool:
    """Return true if the open file is the one that ``path`` names now."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
