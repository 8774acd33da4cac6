"""A temporary folder through which networks and arrays go to a child process and back, mapped by both."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from devices.host.owned_folder import owned_folder, remove_abandoned
from fleet_tune.base.errors import DiskFullError

MORE_SPACE = "free some space on the disk, or set TMPDIR to a folder that has some"


class ExchangeFolder:
    """A temporary folder with ``name`` in its name.

    If the parent was killed, the child removes it. If both were killed, the next owner of such a folder removes it.
    """

    def __init__(self, name: str) -> None:
        self._open = contextlib.ExitStack()
        place = Path(_roomy_place() or tempfile.gettempdir())
        remove_abandoned(place)
        with writing("a temporary folder"):
            self.path = self._open.enter_context(owned_folder(name, place))

    def file(self, name: str) -> Path:
        return self.path / name

    def close(self) -> None:
        self._open.close()


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Raise :class:`DiskFullError` if ``what`` cannot be written."""
    try:
        yield
    except OSError as error:
        raise DiskFullError(f"{what} cannot be written for the process that uses it: {error}", MORE_SPACE) from error


def _roomy_place() -> str | None:
    """Return a folder for large files, as the usual temporary folder is often in memory. None for the usual one."""
    place = "/var/tmp"
    return place if "TMPDIR" not in os.environ and os.access(place, os.W_OK | os.X_OK) else None
