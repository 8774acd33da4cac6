"""Sources of a transfer. A glance at the files tells them apart, before anything heavy is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from fleet_tune.base.errors import TransferError

BUILTIN = "pretrained"
BUILTIN_PACM = "pretrained-pacm"
BUILTINS = (BUILTIN, BUILTIN_PACM)
"""Names of the cost models that come with fleet-tune, which can be given instead of a path: ours, and the PaCM that
``moa-pruner`` starts from."""
METASCHEDULE_FILES = ("database_workload.json", "database_tuning_record.json")
BY_METASCHEDULE = "metaschedule"
"""Name of the run and the device of records that MetaSchedule has measured. Their outputs were not compared."""
RECORDS_FILE = "records.db"
MODEL_SUFFIX = ".safetensors"

SourceKind = Literal["metaschedule", "records", "dataset", "model"]
_HEAD_BYTES = 32


def is_builtin(path: Path) -> bool:
    """Return true if this is the name of a cost model that comes with fleet-tune, and there is no file of that name."""
    return str(path) in BUILTINS and not path.exists()


def check_source(path: Path) -> SourceKind:
    """Return the kind of the source at ``path``. A folder has a MetaSchedule database, the records.db of a run, or the
    file of a cost model. Raise :class:`TransferError` if there is nothing, or nothing to learn from."""
    if is_builtin(path):
        return "model"
    try:
        if path.is_dir():
            if all((path / name).is_file() for name in METASCHEDULE_FILES):
                return "metaschedule"
            if (path / RECORDS_FILE).is_file():
                return "records"
            if any(path.glob(f"*{MODEL_SUFFIX}")):
                return "model"
            raise _nothing(path, "has no records.db, MetaSchedule database or cost model")
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except FileNotFoundError:
        raise _nothing(path, "does not exist") from None
    except OSError as error:
        raise _nothing(path, f"cannot be read: {os.strerror(error.errno or 0)}") from error
    if head.startswith(b"SQLite format 3"):
        return "records"
    if head.startswith(b"fleet-tune-dataset"):
        return "dataset"
    if path.suffix == MODEL_SUFFIX:
        return "model"
    raise _nothing(path, "is no record database, dataset or cost model")


def _nothing(path: Path, problem: str) -> TransferError:
    return TransferError(
        f"{path} {problem}",
        "give a records.db, a dataset, the folder of a MetaSchedule database, or the file of a cost model",
    )
