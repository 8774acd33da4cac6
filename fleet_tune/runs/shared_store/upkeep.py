"""Queries of a record store and copies of its records, for ``fleet-tune records``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from devices.host.file_cache import source_digest, tvm_versions
from fleet_tune.base.domain import Task
from fleet_tune.base.errors import RecordStoreError, RequestError
from fleet_tune.base.records.datasets.sources import RECORDS_FILE
from fleet_tune.base.records.sharing.maintenance import Excerpt, PruneRule, RecordVerdict, StoreMaintenance, prune
from fleet_tune.base.records.sharing.records_file import RecordsFile, RecordsFileWriter
from fleet_tune.base.records.sharing.run_store_target import RunStoreTarget
from fleet_tune.base.records.sharing.salvage import DamagedReader
from fleet_tune.base.records.sharing.shared import CopyResult, SharedReader, Target, copy_records, shared_store
from fleet_tune.base.records.sharing.store_place import StorePlace
from fleet_tune.base.records.sharing.team import Team
from fleet_tune.base.records.stores.origin import Origin
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import BOUND
from fleet_tune.base.records.stores.stored_speeds import PROBE

_LEAST_TEXT = 3


def versions_now() -> dict[str, str]:
    """Return the versions of the software that builds and measures kernels on this machine; see
    :class:`fleet_tune.base.records.stores.origin.Origin`. Does not load TVM."""
    return {**tvm_versions(), "kernels": source_digest(), "probe": PROBE}


def store_at(path: Path) -> Path:
    """Return the file of a store: ``path`` itself, or if it is the folder of a run, the run's record store. Raises
    :class:`RecordStoreError` if the file is missing or cannot be read."""
    file = path / RECORDS_FILE if path.is_dir() else path
    if not file.is_file():
        raise RecordStoreError(f"there is no record store {file}", "name one with --store")
    RecordReader(file).close()
    return file


@contextmanager
def opened_target(store: Path) -> Iterator[Target]:
    """Open the store to which records are copied: a shared store, which is made if it is missing, or a run's store."""
    file = target_at(store)
    with shared_store(file) as opened, SharedReader(file) as reader:
        yield RunStoreTarget(opened, reader) if BOUND in reader.meta() else opened


def target_at(path: Path) -> Path:
    """Return the file of a store, which may be missing; see :func:`store_at`."""
    return store_at(path) if path.is_dir() else path


@dataclass(frozen=True)
class CopySummary:
    """Summary of a copy of records."""

    copied: CopyResult
    skipped: Sequence[str] = ()
    """Descriptions of what could not be read."""


def export(store: Path, file: Path, keep_best: int | None = None, device_class: str | None = None) -> CopySummary:
    """Write the records of a store to a file: all records, or an :class:`Excerpt` if ``keep_best`` or ``device_class``
    is given. Raises :class:`RecordFileError`."""
    with StoreMaintenance(store_at(store)) as reader, RecordsFileWriter(file) as writer:
        is_whole = keep_best is None and device_class is None
        return CopySummary(copy_records(reader if is_whole else Excerpt(reader, keep_best, device_class), writer))


def import_file(file: Path, store: Path) -> CopySummary:
    """Copy the records of a file into a store, which is made if it is missing. Raises :class:`RecordFileError`."""
    source = RecordsFile(file)
    with opened_target(store) as target:
        copied = copy_records(source, target)
    return CopySummary(copied, tuple(source.skipped))


def merge(sources: Sequence[Path], store: Path) -> list[tuple[Path, CopySummary]]:
    """Copy the records of several stores or runs' folders into one store, which is made if it is missing. If the file
    of a source is damaged, its readable records are copied. Raises :class:`RecordStoreError` for a missing source,
    :class:`RequestError` if a source is the target."""
    missing = [source for source in sources if not source.exists()]
    if missing:
        raise RecordStoreError(f"there is no record store {missing[0]}", "give stores, or output folders of runs")
    files, into = [store_at(source) for source in sources], target_at(store)
    if into.exists() and any(file.samefile(into) for file in files):
        raise RequestError(f"{store} cannot be merged into itself", "name another one with --store")
    moved = []
    for file in files:
        with DamagedReader(file) as reader, opened_target(store) as target:
            moved.append((file, _saved(copy_records(reader, target), reader)))
    return moved


def _saved(copied: CopyResult, source: DamagedReader) -> CopySummary:
    if not source.is_damaged:
        return CopySummary(copied)
    lost = source.lost + copied.left_out
    told = f"{lost} of its records cannot be read, or depend on what cannot" if lost else "all of its records are saved"
    return CopySummary(CopyResult(copied.records, copied.cursor), (f"{source.path} is damaged: {told}",))


def pruned(store: Path, rule: PruneRule, dry_run: bool, server: str = "") -> tuple[int, int]:
    """Prune the records that match a rule. Return their number, and the number of all records before.

    Args:
        store: the store.
        rule: selects the records to prune.
        dry_run: only count the records.
        server: address of the team's store of which this is a copy. The team's store is pruned first. Empty for none.
    """
    file = store_at(store)
    with StoreMaintenance(file) as reader:
        seqs, count = reader.matching(rule), reader.statistics().records
        uids = reader.uids(seqs) if server else []
    if seqs and not dry_run:
        if server:
            Team(StorePlace(store, server)).remove(uids)
        prune(file, seqs)
    return len(seqs), count


def older_than(secs: float) -> float:
    """Return the unix time of ``secs`` seconds ago."""
    return time.time() - secs


def why(
    store: Path, text: str, device_class: str | None, now: dict[str, Origin] | None
) -> list[tuple[Task, list[RecordVerdict]]]:
    """Return the tasks whose workload has the name ``text``, or a hash that begins with it (at least three characters),
    each with the verdicts on its records: whether they count. Raises :class:`RequestError` if there is no such task."""
    with StoreMaintenance(store_at(store)) as reader:
        tasks = [
            task
            for task in reader.tasks()
            if device_class in (None, task.device_class.name)
            and (text == task.workload.name or (len(text) >= _LEAST_TEXT and task.workload.hash.startswith(text)))
        ]
        if not tasks:
            raise RequestError(
                f"{store} has no task {text}" + (f" of the class {device_class}" if device_class else ""),
                "'fleet-tune records top' lists them",
            )
        return [(task, reader.why(task, versions_now(), now)) for task in tasks]
