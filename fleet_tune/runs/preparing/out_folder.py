"""The output folder of a run: it is checked before anything is measured, and belongs to one run at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fleet_tune.base.errors import DiskFullError, OutputFolderError
from fleet_tune.base.records.files.lock_file import LockedError, release_lock, take_lock
from fleet_tune.base.records.files.network_drive import network_drive
from fleet_tune.runs.progress_file import remove_progress

LOCK_FILE = "run.lock"
_LOG = logging.getLogger(__name__)

# With less free space even the results of a small network do not fit: this is reported before hours of tuning.
_MIN_FREE_BYTES = 64 * 1024 * 1024


def prepare_folder(out: Path) -> None:
    """Make and check the output folder, so that an error is raised before the tuning and not after it. Raises
    :class:`OutputFolderError`, and :class:`DiskFullError` if less than 64 MiB are free."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OutputFolderError(f"{out} is a file, not a folder", "choose another folder with --out") from None
    except OSError as error:
        raise OutputFolderError(
            f"the output folder {out} cannot be made: {error.strerror}", "choose another folder with --out"
        ) from error
    if not os.access(out, os.W_OK | os.X_OK):
        raise OutputFolderError(f"the output folder {out} is not writable", "choose another folder with --out")
    free = shutil.disk_usage(out).free
    if free < _MIN_FREE_BYTES:
        raise DiskFullError(
            f"only {free // 2**20} MiB are free where {out} is",
            f"free at least {_MIN_FREE_BYTES // 2**20} MiB, or choose another folder with --out",
        )


@contextlib.contextmanager
def held_folder(out: Path) -> Iterator[None]:
    """Prepare the folder by :func:`prepare_folder`, and lock it for this run until the block is left. Raises
    :class:`OutputFolderError` at once if another run uses it. Folders that were made here and are empty at the end are
    removed: a command that is refused leaves nothing."""
    made = [folder for folder in (out, *out.parents) if not os.path.exists(folder)]
    try:
        prepare_folder(out)
        with _locked(out):
            yield
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # it is not empty, or was not made
                folder.rmdir()


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    drive = network_drive(out)
    if drive:
        _LOG.warning(
            "%s is on a network file system (%s): records may be slow to store there, and are lost where it locks "
            "wrongly; better give a folder of this machine with --out, and copy it when the run is over",
            out,
            drive,
        )
    try:
        before = set(os.listdir(out))
        lock = take_lock(out / LOCK_FILE)
    except LockedError as error:
        raise OutputFolderError(
            f"another run ({error.who}) uses the output folder {out}",
            "wait until it ends, or choose another folder with --out",
        ) from None
    except OSError as error:
        raise OutputFolderError(
            f"the output folder {out} cannot be locked: {error.strerror}", "choose another folder with --out"
        ) from error
    remove_progress(out)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if LOCK_FILE not in before and set(os.listdir(out)) == {*before, LOCK_FILE}:
                (out / LOCK_FILE).unlink()
        release_lock(lock)
