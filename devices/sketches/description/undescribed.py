"""Traces that cannot be described, and the reason."""

from __future__ import annotations

from devices.error_text import brief


class UndescribedError(Exception):
    """The trace does something that the symbolic sketch cannot express."""


def reason_of(error: Exception) -> str:
    """Return why a sketch is left undescribed, in one line.

    Any error during a description is a valid reason. Unknown features of a program may raise any error of TVM or
    Python, and the sketch can be searched without a description.
    """
    return str(error) if isinstance(error, UndescribedError) else brief(error)
