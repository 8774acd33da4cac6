"""The output of the command line when it cannot be written any more: its reader has ended, its terminal was closed, or
the disk is full. A run of hours must not fail because of a line of its progress."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO

_READER_LEFT = (errno.EPIPE, errno.EIO)


class LastingOutput(io.FileIO):
    """A file that discards everything from the first failed write on."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError as error:
            self.failure = error
            with open(os.devnull, "wb") as null:
                os.dup2(null.fileno(), self.fileno())
            return memoryview(data).nbytes


def keep_output() -> LastingOutput:
    """Let this process go on when its output is lost, and return the file of its standard output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # else the next file that is opened gets this descriptor, and the output of native code
            os.open(os.devnull, os.O_RDWR)
    out, errors = LastingOutput(1), LastingOutput(2)
    sys.stdout, sys.stderr = _text(out, sys.stdout), _text(errors, sys.stderr)
    return out


def lost_output(out: LastingOutput) -> str:
    """Return why the output was lost; empty if it was not, or if its reader has ended."""
    failure = out.failure
    return "" if failure is None or failure.errno in _READER_LEFT else failure.strerror or str(failure)


def _text(file: LastingOutput, before: TextIO | None) -> TextIO:
    """Return a text stream with the settings of Python's own stream ``before``, None if its descriptor was closed."""
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=getattr(before, "encoding", None),
        errors=getattr(before, "errors", None),
        line_buffering=file.isatty() or file.fileno() == 2,
    )
