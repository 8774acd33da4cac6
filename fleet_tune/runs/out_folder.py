"""The output folder of a run, checked before anything is measured."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fleet_tune.errors import DiskFullError, OutputFolderError

# Below this the results of a small network do not fit either: better to say so before hours of tuning.
_MIN_FREE_BYTES = 64 * 1024 * 1024


def prepare_folder(out: Path) -> None:
    """Make the output folder; an error now rather than after the tuning."""
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
