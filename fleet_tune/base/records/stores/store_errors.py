"""Translation of the errors of SQLite and of the file system into those of a record store."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from fleet_tune.base.errors import DamagedStoreError, DiskFullError, RecordStoreError
from fleet_tune.base.processes import holder_text, writers_of

ANOTHER_FOLDER = "choose another folder with --out"
"""Next step for the store of a run itself. A caller whose store was named by another option names that option
instead."""
# Messages of SQLite, and of Python about text, that mean damage: a sound store has all tables and columns of its
# version. The last one means an unknown column, because rows are inserted with values for all known ones.
_OF_DAMAGE = re.compile(
    "Could not decode to UTF-8|malformed database schema|no such (column|table)|has no column named"
    "|NOT NULL constraint failed"
)


def not_ours(path: Path) -> RecordStoreError:
    """Return the error for a file at ``path`` that is no record store."""
    return RecordStoreError(
        f"{path} is not a record database of fleet-tune", f"{ANOTHER_FOLDER}, or move the file away"
    )


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and of the file system into ours. Programming errors stay as they are."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite quotes damaged names in its messages
        raise _damaged(path, "text in it is no UTF-8") from error
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        if _OF_DAMAGE.search(str(error)):
            raise _damaged(path, str(error)) from error
        if code is None:
            raise
        primary = code & 0xFF
        if primary == sqlite3.SQLITE_FULL or code in (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE):
            # SQLite sees a quota, or a limit on the size of a file, as a failed write and not as a full disk. If it
            # cannot enlarge the index of its log, the disk is full too.
            raise _disk_full(path) from error
        if primary == sqlite3.SQLITE_NOTADB:
            raise not_ours(path) from error
        if primary == sqlite3.SQLITE_CORRUPT:
            raise _damaged(path, str(error)) from error
        if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            raise _unusable(path, str(error)) from error
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            writers = writers_of([path, *(path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm"))])
            who = f" ({', '.join(map(holder_text, writers))})" if writers else ""
            raise RecordStoreError(
                f"another program{who} has locked {path} for too long", "close it and run again"
            ) from error
        if primary == sqlite3.SQLITE_IOERR:
            raise RecordStoreError(f"{path}: {error}", "check the disk and run again") from error
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _disk_full(path) from error
        raise _unusable(path, os.strerror(error.errno) if error.errno else str(error)) from error


def _damaged(path: Path, reason: str) -> DamagedStoreError:
    shown = " ".join(reason.split())
    return DamagedStoreError(f"{path} is damaged: {shown}", f"restore it from a copy, or {ANOTHER_FOLDER}")


def _disk_full(path: Path) -> DiskFullError:
    return DiskFullError(
        f"no space left to write {path} (the disk, its quota or a file size limit)",
        f"free some space in {path.parent} and run again: it resumes",
    )


def _unusable(path: Path, reason: str) -> RecordStoreError:
    return RecordStoreError(f"cannot use {path}: {reason}", f"{ANOTHER_FOLDER} that can be written")
