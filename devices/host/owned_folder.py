"""Temporary folders that are removed after their owner has ended, however it ended.

The owner holds a lock on the folder itself (flock(2)), which the kernel releases when the process ends. So a folder
with such a name that nobody has locked is abandoned. This holds at whatever moment its owner was killed, and also if a
process that outlived the owner has made the folder again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

# Names that people do not give to folders of their own: abandoned folders with such names are removed.
_PREFIX = "fleet-tune-tmp-"
_NAME = re.compile(rf"{_PREFIX}[a-z]+-[a-z0-9_]{{8}}")


@contextlib.contextmanager
def owned_folder(name: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a new folder that this user alone may enter, with ``name`` in its name; removed at the end.

    ``parent``: ``None`` for the usual place of temporary files. Raises OSError if the folder cannot be made.
    """
    folder, lock = make_locked(name, parent)
    try:
        yield folder
    finally:
        remove_locked(folder, lock)


def make_locked(name: str, parent: Path | None = None) -> tuple[Path, int]:
    """Make a folder as :func:`owned_folder` does, and return it with the descriptor that has its lock. Every process
    that inherits the descriptor owns the folder too: the kernel frees the lock when the last one has ended."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-", dir=parent))
        # Another process may take it for abandoned before it is locked.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            # Some network file systems cannot lock folders. There nobody gets the lock, and abandoned folders stay.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def remove_locked(folder: Path, lock: int) -> None:
    """Remove a folder of :func:`make_locked`, and release its lock."""
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def remove_abandoned(parent: Path | None = None, users: Collection[int] = ()) -> None:
    """Remove the folders in ``parent`` whose owners are gone: those of this user, and of ``users`` (their ids)."""
    place = Path(tempfile.gettempdir()) if parent is None else parent
    with contextlib.suppress(OSError):
        for folder in [each for each in place.iterdir() if _NAME.fullmatch(each.name)]:
            with contextlib.suppress(OSError):
                _remove_unlocked(folder, {os.geteuid(), *users})


def _remove_unlocked(folder: Path, users: Collection[int]) -> None:
    """Remove a folder of one of these users unless somebody has locked it. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid in users:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
