"""What a description does not know, and why."""

from __future__ import annotations

from devices.error_text import brief


class UndescribedError(Exception):
    """The trace does something that the symbolic sketch cannot express."""


def reason_of(error: Exception) -> str:
    """Why a sketch is left undescribed, in one line. Any error of a description is a reason: what it does not know of a
    program of others may come as any of TVM's errors or of Python's, and the sketch can be searched without it."""
    return str(error) if isinstance(error, UndescribedError) else brief(error)
