"""File with the last snapshot of a run in its output folder, for other processes."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.results import Progress

PROGRESS_FILE = "progress.json"
_EVERY_SECS = 1.0
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """A snapshot as the file keeps it: without tasks, which are in the records."""

    unix_secs: float
    """When it was written, in seconds since 1970."""
    progress: Progress


class ProgressFile:
    """Writes the snapshots of a run: at most one a second, and one at each new phase.

    Args:
        folder: output folder of the run.
        clock: seconds since 1970.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = folder / PROGRESS_FILE, clock
        self._written = SavedProgress(0.0, Progress("", 0.0, None, None, 0, 0, {}, 0.0, {}, {}, ()))

    def write(self, progress: Progress) -> None:
        """Write a snapshot. An error of writing does not end the run: it goes to the debug log."""
        now, before = self._clock(), self._written
        if progress.phase == before.progress.phase and 0.0 <= now - before.unix_secs < _EVERY_SECS:
            return
        self._written = SavedProgress(now, replace(progress, tasks=()))
        try:
            write_atomically(self._path, msgspec.json.encode(self._written), durable=False)
        except (OSError, TypeError, ValueError) as error:
            _LOG.debug("%s cannot be written: %s", self._path, error)

    def close(self) -> None:
        """Remove the file: it would show work that has ended."""
        remove_progress(self._path.parent)


def remove_progress(folder: Path) -> None:
    """Remove the progress files from this folder, also partial files of a run that was killed. A file that cannot be
    removed stays."""
    for file in (folder / PROGRESS_FILE, *folder.glob(f".{PROGRESS_FILE}.*.part")):
        with contextlib.suppress(OSError):
            file.unlink()


def saved_progress(folder: Path) -> SavedProgress | None:
    """Return the last snapshot of the run with this output folder. None if there is none that this version can read."""
    try:
        return msgspec.json.decode((folder / PROGRESS_FILE).read_bytes(), type=SavedProgress)
    except (OSError, ValueError):
        return None
