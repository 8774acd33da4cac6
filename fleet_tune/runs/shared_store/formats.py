"""Conversion of records to and from the formats of other programs, for ``fleet-tune records``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet_tune.base.errors import RequestError
from fleet_tune.base.records.datasets.sources import METASCHEDULE_FILES
from fleet_tune.base.records.sharing.maintenance import StoreMaintenance
from fleet_tune.base.records.sharing.parquet import write_parquet
from fleet_tune.base.records.sharing.shared import CopyResult, copy_records
from fleet_tune.runs.shared_store.upkeep import CopySummary, opened_target, store_at, versions_now

MOST_WORDS = 10_000
"""Maximum of candidates of a task in a MetaSchedule database: TVM keeps all of them in memory."""


@dataclass(frozen=True)
class ExportedDatabase:
    """A written MetaSchedule database."""

    device_class: str
    folder: Path
    records: int


def export_metaschedule(store: Path, folder: Path, device_class: str | None) -> list[ExportedDatabase]:
    """Write the records of a store as MetaSchedule databases, one for each device class: in ``folder`` for a single
    class, otherwise in subfolders with the names of the classes. Raises :class:`RequestError`,
    :class:`RecordFileError`."""
    from devices.metaschedule.writing import write_database

    written = []
    with StoreMaintenance(store_at(store)) as reader:
        tasks = [task for task in reader.tasks() if device_class in (None, task.device_class.name)]
        classes = sorted({task.device_class.name for task in tasks})
        if not classes:
            named = f" of the class {device_class}" if device_class else ""
            raise RequestError(f"{store} has no task{named}", "'fleet-tune records top' lists them")
        for name in classes:
            into = folder if len(classes) == 1 else folder / name
            of_class = (task for task in tasks if task.device_class.name == name)
            known = ((task, reader.known(task, versions_now(), MOST_WORDS)) for task in of_class)
            written.append(ExportedDatabase(name, into, write_database(into, name, known)))
    return written


def export_parquet(store: Path, file: Path, device_class: str | None) -> int:
    """Write the records of a store as a Parquet file, and return their number. Raises :class:`RequestError` if pyarrow
    is not installed, :class:`RecordFileError`."""
    with StoreMaintenance(store_at(store)) as reader:
        return write_parquet(reader, file, device_class)


def metaschedule_folders(path: Path) -> list[Path]:
    """Return the folders of MetaSchedule databases at ``path``: of the path itself and the folders in it."""
    if not path.is_dir():
        return []
    folders = [path, *sorted(each for each in path.iterdir() if each.is_dir())]
    return [each for each in folders if all((each / name).is_file() for name in METASCHEDULE_FILES)]


def import_metaschedule(folders: Sequence[Path], store: Path, device_class: str | None) -> tuple[CopySummary, int]:
    """Copy the schedules of MetaSchedule databases into a store, which is made if it is missing. Return a summary, and
    the number of their records that follow none of our sketches. Raises :class:`TransferError`."""
    from devices.metaschedule.schedules import DatabaseSchedules

    copied = own_sketches = 0
    skipped: list[str] = []
    for folder in folders:
        source = DatabaseSchedules(folder, device_class or "")
        skipped += [f"{folder.name}/{line}" if len(folders) > 1 else line for line in source.skipped]
        with opened_target(store) as target:
            copied += copy_records(source, target).records
        own_sketches += source.own_sketches
    return CopySummary(CopyResult(copied, 0), tuple(skipped)), own_sketches
