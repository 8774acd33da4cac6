"""The current folder of a process, which may vanish.

Ray unpacks the files of a job into the folder in which the job runs, and may do so again while the job runs. Then
another folder has the path of the current folder, which is removed. Native libraries that ask for the current folder
while they are loaded then end the process: torch's oneMKL does, with exit code 2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

from fleet_tune.base.errors import UserError

_CLONE_FS = 0x200
# Ray unpacks the files of a job within this time.
_AGAIN_SECS = 5.0
_LOOK_SECS = 0.05


class CurrentFolderError(UserError):
    """The current folder was removed: change to another one."""


def enter_replaced_folder() -> None:
    """If the current folder was replaced by another one at the same path, enter that one. Raises
    :class:`CurrentFolderError` if it was only removed."""
    path = os.environ.get("PWD", "")
    deadline = time.monotonic() + _AGAIN_SECS
    while not _has_current_folder():
        if not os.path.isabs(path) or time.monotonic() > deadline:
            raise CurrentFolderError("the current folder was removed", "change to a folder that exists, and run again")
        with contextlib.suppress(OSError):
            os.chdir(path)
            continue
        time.sleep(_LOOK_SECS)


def enter_any_folder() -> None:
    """Enter the folder as :func:`enter_replaced_folder` does, or the root folder if it was removed: for a process whose
    paths are all absolute."""
    try:
        enter_replaced_folder()
    except CurrentFolderError:
        os.chdir("/")


def leave_current_folder_in_thread() -> None:
    """Give the calling thread a current folder of its own, the root, which nobody removes. If the system does not allow
    this (some containers), the thread keeps the current folder of its process."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_FS) == 0:
            os.chdir("/")


def _has_current_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True
