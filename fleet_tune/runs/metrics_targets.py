"""Files for Prometheus (``file_sd_configs``) that name the runs of a user: one for each run that serves metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from fleet_tune.base.processes import HostProcess
from fleet_tune.base.records.files.atomic_file import write_atomically
from fleet_tune.base.records.sharing.store_place import user_data

_SUFFIX = ".json"


def user_targets() -> Path | None:
    """Return the folder of this user's files; None if the user has no home."""
    try:
        return user_data() / "metrics-targets"
    except RuntimeError:
        return None


def publish_target(folder: Path, run: str, address: str, labels: Mapping[str, str]) -> Path:
    """Write the file of a run, and remove files of processes that are gone. Return its path. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob(f"*{_SUFFIX}"):
        process = _process_of(path)
        if process is not None and not process.is_there():
            path.unlink(missing_ok=True)
    own = HostProcess.of(os.getpid())
    # The process is in the file's name: Prometheus refuses a file with other fields.
    path = folder / f"{run}.{own.pid}.{own.started}.{own.namespace.strip('pid:[]')}{_SUFFIX}"
    write_atomically(path, json.dumps([{"targets": [address], "labels": labels}]).encode(), durable=False)
    return path


def _process_of(path: Path) -> HostProcess | None:
    """Return the process that wrote a file. None for a file that no run has written."""
    parts = path.name.removesuffix(_SUFFIX).split(".")
    return HostProcess(int(parts[1]), parts[2], f"pid:[{parts[3]}]") if len(parts) == 4 and parts[1].isdigit() else None
