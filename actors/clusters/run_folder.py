"""The temporary folder of a run, for Ray's files and for those of its actors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from devices.host.owned_folder import owned_folder, remove_abandoned

# Short: the folder holds Unix sockets, whose paths have 107 characters at most.
_PARENT = Path("/tmp")


@contextlib.contextmanager
def run_folder(parent: Path = _PARENT) -> Iterator[Path]:
    """Make the folder of a run, and remove those of runs that were killed; see
    :func:`devices.host.owned_folder.owned_folder`."""
    remove_abandoned(parent)
    with owned_folder("run", parent) as folder:
        yield folder
