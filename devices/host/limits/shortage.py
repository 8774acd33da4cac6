"""Errors of a machine that is short of disk space, processes or open files. They are no fault of the work that
fails."""

from __future__ import annotations

import errno

MORE_ROOM = (
    "free some space (TMPDIR names another folder), or allow more processes and open files, and run the same command "
    "again: it resumes"
)
_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN)
_TEXTS = ("No space left on device", "Disk quota exceeded", "Too many open files", "Cannot fork")


def is_shortage(error: BaseException) -> bool:
    """Return true if the error, or an error that caused it, is such a shortage. Linkers and other processes report it
    as text."""
    reason: BaseException | None = error
    while reason is not None:
        if (isinstance(reason, OSError) and reason.errno in _ERRORS) or any(text in str(reason) for text in _TEXTS):
            return True
        reason = reason.__cause__
    return False
