"""Locks on files that say who holds them. The kernel frees them when their process ends, however it does."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class LockedError(Exception):
    """Another process holds the lock. ``owner``: its id, as far as it is known."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


def take_lock(path: Path) -> int:
    """Lock the file ``path``, which is made where it is missing, and write the id of this process into it. The
    descriptor whose closing frees it. Raises :class:`LockedError` at once, and OSError."""
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


def _is_at(path: Path, descriptor: int) -> bool:
    """Return true if the open file is the one that ``path`` names now."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
