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
    """The versions of the software that makes and measures kernels here; see
    :class:`fleet_tune.base.records.stores.origin.Origin`. Loads no TVM."""
    return {**tvm_versions(), "kernels": source_digest(), "probe": PROBE}


def store_at(path: Path) -> Path:
    """The file of a store: ``path`` itself, or the records of a run where it is its folder. Raises
    :class:`RecordStoreError` where there is none, or it cannot be read."""
    file = path / RECORDS_FILE if path.is_dir() else path
    if not file.is_file():
        raise RecordStoreError(f"there is no record store {file}", "name one with --store")
    RecordReader(file).close()
    return file


@contextmanager
def opened_target(store: Path) -> Iterator[Target]:
    """Open the store that records are copied to: a shared store, which is made if it is missing, or that of a run."""
    file = target_at(store)
    with shared_store(file) as opened, SharedReader(file) as reader:
        yield RunStoreTarget(opened, reader) if BOUND in reader.meta() else opened


def target_at(path: Path) -> Path:
    """The file of a store, which may be missing; see :func:`store_at`."""
    return store_at(path) if path.is_dir() else path


@dataclass(frozen=True)
class CopySummary:
    """A summary of what was copied."""

    copied: CopyResult
    skipped: Sequence[str] = ()
    """Lines of a file that could not be read."""


def export(store: Path, file: Path, keep_best: int | None = None, device_class: str | None = None) -> CopySummary:
    """Write the records of a store to a file: all, or see :class:`Excerpt`. Raises :class:`RecordFileError`."""
    with StoreMaintenance(store_at(store)) as reader, RecordsFileWriter(file) as writer:
        is_whole = keep_best is None and device_class is None
        return CopySummary(copy_records(reader if is_whole else Excerpt(reader, keep_best, device_class), writer))


def import_file(file: Path, store: Path) -> CopySummary:
    """Take the records of a file into a store, which is made where it is missing. Raises :class:`RecordFileError`."""
    source = RecordsFile(file)
    with opened_target(store) as target:
        copied = copy_records(source, target)
    return CopySummary(copied, tuple(source.skipped))


def merge(sources: Sequence[Path], store: Path) -> list[tuple[Path, CopySummary]]:
    """Copy the records of several stores, or runs' folders, into one, which is made where it is missing; of one whose
    file is damaged what is sound."""
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
    """Prune the records that match a rule, and return their number and that of all records.

    Args:
        store: the store.
        rule: says which records are pruned.
        dry_run: only count.
        server: address of the team's store whose copy this is, which is pruned first; empty for none.
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
    """The unix time before which records are older than so many seconds."""
    return time.time() - secs


def why(
    store: Path, text: str, device_class: str | None, now: dict[str, Origin] | None
) -> list[tuple[Task, list[RecordVerdict]]]:
    """The tasks whose workload has this name, or whose hash begins so, and whether their records count. Raises
    :class:`RequestError` where there is none."""
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
