"""A home folder for a user who has none.

Ray, TVM, torch and fleet-tune itself keep files below ``HOME``: keys, caches, stores. A container often has a user
without an entry in its list of users, and with a ``HOME`` that does not exist and cannot be made, or that is read-only.
Then a folder of this user alone in the place of temporary files takes its place, for this process and all that it
starts.
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
    """Make ``HOME`` a folder that this user may write to. Returns what to tell the user; empty where it is one already.

    ``is_written``: False where it is enough to know a folder (TVM asks for one when it is imported). Raises
    :class:`HomeError` where no folder can take its place.
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
