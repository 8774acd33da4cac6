"""The arguments of a run, resolved, and the check of its output folder."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet_tune.config.fleet_file import FleetConfig
from fleet_tune.errors import DiskFullError, OutputFolderError

DEFAULT_TIME_BUDGET_SECS = 600.0
# Below this the results of a small network do not fit either: better to say so before hours of tuning.
_MIN_FREE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Options:
    """The arguments of :func:`fleet_tune.api.tune`, resolved.

    ``per_task``: collect a dataset of that many trials of every task, each measured to its end, instead of tuning.
    ``transfer_from``: what the search learns from before its first trial (:mod:`fleet_tune.runs.transfer`),
    ``pretrained``: whether the model that comes with fleet-tune is used where nothing is named."""

    model: Any
    out: Path
    method: str
    trials: int | None
    time_budget_secs: float | None
    fleet: FleetConfig
    address: str | None
    seed: int
    metrics_port: int | None
    per_task: int | None = None
    transfer_from: Path | None = None
    pretrained: bool = True

    @property
    def records(self) -> Path:
        return self.out / "records.db"


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
