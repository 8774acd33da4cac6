"""A home folder for a user who has none.

Ray, TVM, torch and fleet-tune itself keep files below ``HOME``: keys, caches, stores. The user of a container often has
no entry in the list of users, and a ``HOME`` that is read-only, or does not exist and cannot be made. Then a private
folder of this user among the temporary files replaces ``HOME``, for this process and all processes that it starts.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import tempfile
from pathlib import Path

from fleet_tune.base.errors import HomeError

_NEXT = "set HOME to a folder of your own"


def provide_home(is_written: bool = True) -> str:
    """Make ``HOME`` a folder that this user may write to. Return a message for the user; empty if ``HOME`` could be
    used as it was.

    ``is_written``: False if it is enough that a home folder is known (TVM asks for one when it is imported). Raise
    :class:`HomeError` if no folder can replace ``HOME``.
    """
    _provide_name()
    try:
        home = Path.home()
    except RuntimeError:
        return _replace("this user has no home folder")
    if not is_written:
        return ""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return ""
    except OSError as error:
        return _replace(f"HOME={home} cannot be written ({error.strerror or error})")


def _provide_name() -> None:
    """Give a user without an entry in the list of users a name: torch asks for one."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = f"uid{os.geteuid()}"


def _replace(reason: str) -> str:
    try:
        folder = Path(tempfile.gettempdir()) / f"fleet-tune-home-{os.geteuid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise HomeError(
            f"{reason}, and no temporary folder can take its place: {error.strerror or error}", _NEXT
        ) from error
    # Its name can be guessed: another user may have made it.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise HomeError(f"{reason}, and {folder}, which would take its place, is not this user's alone", _NEXT)
    os.environ["HOME"] = str(folder)
    return f"{reason}: keys, caches and stores go to {folder}; {_NEXT} to keep them"
