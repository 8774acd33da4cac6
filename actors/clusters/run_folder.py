"""The temporary folder of a run, for Ray's files and for those of its actors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from devices.host import owned_folder

# Short: the folder holds Unix sockets, whose paths have 107 characters at most.
_PARENT, _PREFIX = Path("/tmp"), "ft-ray-"


def run_folder(parent: Path = _PARENT) -> AbstractContextManager[Path]:
    """See :func:`devices.host.owned_folder.owned_folder`."""
    return owned_folder.owned_folder(parent, _PREFIX)


def remove_abandoned(parent: Path = _PARENT) -> None:
    """Remove the folders of runs that were killed."""
    owned_folder.remove_abandoned(parent, _PREFIX)
