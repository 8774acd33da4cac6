"""Queries on a record store that runs share, and its pruning: ``fleet-tune records``."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fleet_tune.base.domain import Outcome, Record, Task
from fleet_tune.base.errors import DamagedStoreError
from fleet_tune.base.records.datasets.sources import BY_METASCHEDULE
from fleet_tune.base.records.sharing.shared import SharedReader, class_of, is_found_wrong, is_withdrawal, last_word
from fleet_tune.base.records.stores.database import open_for_writing
from fleet_tune.base.records.stores.origin import Effort, Origin, encode_origin
from fleet_tune.base.records.stores.store import locked_store
from fleet_tune.base.records.stores.store_errors import translated

_Found = TypeVar("_Found")
_AT_ONCE = 500
_ORPHANS = "SELECT count(*) FROM records LEFT JOIN tasks USING (workload, device_class) WHERE tasks.workload IS NULL"
_LOCK_SECS = 0.5
"""Seconds to wait for the lock of a store. A process that shares a store holds the lock while it opens it; a run holds
the lock of its own store all the time."""


@dataclass(frozen=True)
class TopTask:
    """The best record of a task in a store."""

    task: Task
    record: Record | None
    """Best verified record. None if there is none."""
    records: int
    """Number of records."""
    secs: float | None = None
    """Seconds of the record as people see them
    (:meth:`~fleet_tune.base.records.stores.reader.RecordReader.shown_secs`)."""
    differences: tuple[str, ...] = ()
    """Reasons why the record is not used here as it is; see :class:`Origin`. Empty if it is used."""


@dataclass(frozen=True)
class Statistics:
    """Counts of a store."""

    path: Path
    file_bytes: int
    records: int
    runs: int
    outcomes: Mapping[str, Mapping[str, int]]
    """Trials by device class and outcome."""
    workloads: Mapping[tuple[str, str], int]
    """Trials by workload name and device class."""
    origins: Sequence[tuple[Origin | None, int]]
    """Number of records by origin. The origin is None for records of runs that do not state it."""


@dataclass(frozen=True)
class RecordVerdict:
    """Verdict on a record: does it count?"""

    record: Record
    secs: float
    """Seconds of the record as people see them; infinite for a failure."""
    reasons: tuple[str, ...]
    """Reasons against it, each in a line. Empty if it counts."""


@dataclass(frozen=True)
class PruneRule:
    """Rule for pruning. Records to which every given condition applies are removed."""

    before_unix_secs: float | None = None
    """The record was measured before this time."""
    keep_best: int | None = None
    """The record is not of one of this many best candidates of its task and origin, and does not say that its candidate
    is wrong."""
    versions: Mapping[str, str] | None = None
    """The versions of the record's origin differ from these."""
    device_class: str | None = None
    """The record is of this device class."""


@dataclass(frozen=True)
class IntegrityReport:
    """Damage of a store."""

    records: int
    damaged: tuple[str, ...]
    """Records that cannot be read, each with the reason."""
    file: tuple[str, ...] = ()
    """Damage of the file that SQLite finds."""
    orphans: int = 0
    """Number of records without their task."""

    @property
    def is_sound(self) -> bool:
        """True if nothing is wrong."""
        return not (self.damaged or self.file or self.orphans)


class StoreMaintenance(SharedReader):
    """Reader for queries on all records of a store."""

    def top(self, versions: Mapping[str, str]) -> list[TopTask]:
        """Return the best record of each task. Records of ``versions`` come before others."""
        run_origins = self.run_origins()
        found = []
        for task in self.tasks():
            best = self._best_of(task, versions)
            count = sum(self.counts(task.id).values())
            if best is None:
                found.append(TopTask(task, None, count))
                continue
            origin = run_origins.get((best.run_id, task.device_class.name))
            found.append(TopTask(task, best, count, self.shown_secs(best), differences_of(origin, versions)))
        return found

    def _best_of(self, task: Task, versions: Mapping[str, str]) -> Record | None:
        here = [number for number, origin in self.origins().items() if origin.versions == versions]
        words = self.last_words(task.id, here, 1)
        if words and words[0].measurement.verified:
            return words[0]
        return self.best(task.id)

    def known(self, task: Task, versions: Mapping[str, str], most: int) -> list[Record]:
        """Return the records of the ``most`` best candidates of a task, one record each, the best first. Only records
        of ``versions`` count if one of them is verified, else all."""
        here = [number for number, origin in self.origins().items() if origin.versions == versions]
        words = self.last_words(task.id, here, most)
        if words and words[0].measurement.verified:
            return words
        by_candidate: dict[str, list[Record]] = {}
        for record in self.records_of(task.id):
            by_candidate.setdefault(record.candidate.id, []).append(record)
        words = [word for records in by_candidate.values() if (word := last_word(records)) is not None]
        return sorted(words, key=lambda each: (not each.measurement.verified, each.measurement.rank_secs))[:most]

    def statistics(self) -> Statistics:
        """Return the counts of the whole store."""
        outcomes: dict[str, Counter[str]] = {}
        workloads: Counter[tuple[str, str]] = Counter()
        names = {workload.hash: workload.name for workload in self.workloads()}
        rows = self.rows(
            "SELECT workload, device_class, outcome, count(*) FROM records"
            f" WHERE {self._is_trial} GROUP BY workload, device_class, outcome"
        )
        for workload, device_class, outcome, count in rows:
            outcomes.setdefault(device_class, Counter())[outcome] += count
            workloads[names.get(workload, workload), device_class] += count
        origins: list[tuple[Origin | None, int]] = []
        runs = 0
        if self.has_column("origin"):
            known = self.origins()
            counted = self.rows("SELECT origin, count(*) FROM records GROUP BY origin ORDER BY 2 DESC")
            origins = [(known.get(number), count) for number, count in counted]
            runs = self.rows("SELECT count(DISTINCT run_id) FROM run_origins")[0][0]
        ((records,),) = self.rows("SELECT count(*) FROM records")
        return Statistics(self.path, self.path.stat().st_size, records, runs, outcomes, workloads, origins)

    @property
    def _is_trial(self) -> str:
        return "revision = 0" if self.has_column("revision") else "1"

    def why(
        self, task: Task, versions: Mapping[str, str], now: Mapping[str, Origin] | None = None
    ) -> list[RecordVerdict]:
        """Return a verdict for each candidate of a task, the best first.

        ``now``: the origins of a fleet's records by device class. None: only ``versions`` are compared.
        """
        by_candidate: dict[str, list[Record]] = {}
        for record in self.records_of(task.id):
            by_candidate.setdefault(record.candidate.id, []).append(record)
        origins = self.run_origins()
        name = task.device_class.name
        reasons = []
        for records in by_candidate.values():
            word = last_word(records) or records[-1]
            origin = origins.get((word.run_id, name))
            found = [*_against(word)]
            if now is not None and origin is not None:
                found += (
                    origin.differences(now[name])
                    if name in now
                    else (f"no device of this fleet is of the class {name}",)
                )
            else:
                found += differences_of(origin, versions)
            reasons.append(RecordVerdict(word, self.shown_secs(word), tuple(found)))
        return sorted(reasons, key=lambda each: (bool(each.reasons), each.secs))

    def integrity(self) -> IntegrityReport:
        """Read everything and report the damage. If SQLite cannot read parts of the file, the report names the checks
        that failed."""
        file: list[str] = []

        def read(what: str, looks: Callable[[], _Found], instead: _Found) -> _Found:
            try:
                return looks()
            except DamagedStoreError as error:
                file.append(f"{what} cannot be read: {error.problem.rpartition(' is damaged: ')[2]}")
                return instead

        found = read("the file as a whole", lambda: self.rows("PRAGMA integrity_check"), list[tuple[str]]())
        file += [text for (text,) in found if text != "ok"]
        damaged = read("all of the records", self.unreadable, list[str]())
        damaged += read("what records depend on", self._damaged_origins, list[str]())
        orphans = read("the tasks of the records", lambda: self._count(_ORPHANS), 0)
        records = read("the number of records", lambda: self._count("SELECT count(*) FROM records"), 0)
        read("the workloads", self.tasks, list[Task]())
        return IntegrityReport(records, tuple(damaged), tuple(file), orphans)

    def _damaged_origins(self) -> list[str]:
        if not self.has_table("origins"):
            return []
        known = self.origins()
        numbers = [number for (number,) in self.rows("SELECT id FROM origins ORDER BY id")]
        return [f"origin {number}: it cannot be read" for number in numbers if number not in known]

    def _count(self, query: str) -> int:
        ((count,),) = self.rows(query)
        return int(count)

    def matching(self, rule: PruneRule) -> list[int]:
        """Return the ``seq`` of the records that a rule prunes."""
        matching: list[int] = []
        run_origins = self.run_origins()
        for task in self.tasks():
            name = task.device_class.name
            if rule.device_class not in (None, name):
                continue
            records = self.records_of(task.id)
            kept = set() if rule.keep_best is None else _best_candidates(records, run_origins, rule.keep_best)
            for record in records:
                old = rule.before_unix_secs is None or record.unix_secs < rule.before_unix_secs
                origin = run_origins.get((record.run_id, name))
                other = rule.versions is None or bool(differences_of(origin, rule.versions))
                spare = rule.keep_best is None or not (is_found_wrong(record) or (origin, record.candidate.id) in kept)
                if old and other and spare:
                    matching.append(record.seq)
        return sorted(matching)

    def uids(self, seqs: Sequence[int]) -> list[str]:
        """Return the ``uid`` of each of these records."""
        found: list[str] = []
        for start in range(0, len(seqs), _AT_ONCE):
            some = seqs[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            found += [uid for (uid,) in self.rows(f"SELECT uid FROM records WHERE seq IN ({marks})", *some)]
        return found


class Excerpt:
    """The best records of a store: a source of :func:`fleet_tune.base.records.sharing.shared.copy_records`.

    It has one record of each of the ``most`` best candidates of each task and origin, of one class if ``device_class``
    names it. ``most`` None: all records. Of the efforts on a task it has the largest one for each origin.
    """

    def __init__(self, reader: StoreMaintenance, most: int | None, device_class: str | None) -> None:
        self._reader = reader
        self._most = most
        self._class = device_class
        self.tasks = reader.tasks
        self.run_origins = reader.run_origins
        self.unit_secs = reader.unit_secs

    def efforts(self) -> list[tuple[Effort, Origin]]:
        """Return the efforts of runs, with the origins of their records."""
        found: dict[tuple[str, str], tuple[Effort, Origin]] = {}
        for effort, origin in self._reader.efforts():
            key = effort.task_id, encode_origin(origin)
            last = found.get(key)
            if self._class not in (None, class_of(effort.task_id)):
                continue
            if last is None or (effort.secs, effort.trials) > (last[0].secs, last[0].trials):
                found[key] = effort, origin
        return list(found.values())

    def pages(self, cursor: int = 0) -> Iterator[list[Record]]:  # noqa: ARG002
        """Yield the records, those of one task at a time."""
        origins = self._reader.run_origins()
        for task in self._reader.tasks():
            if self._class in (None, task.device_class.name):
                records = self._reader.records_of(task.id)
                page = records if self._most is None else _best_words(records, origins, self._most)
                if page:
                    yield page


def prune(path: Path, seqs: Sequence[int]) -> None:
    """Remove these records from a store, and make the file smaller if no other process uses it. Raise
    :class:`RecordStoreError`, also if this is the own store of a run that is writing to it."""
    with locked_store(path, _LOCK_SECS), translated(path), closing(open_for_writing(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for start in range(0, len(seqs), _AT_ONCE):
            some = seqs[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            for table in ("traces", "records"):
                connection.execute(f"DELETE FROM {table} WHERE seq IN ({marks})", some)
        connection.execute("COMMIT")
        with suppress(sqlite3.OperationalError):  # other processes use it: free pages are used again
            connection.execute("VACUUM")


def differences_of(origin: Origin | None, versions: Mapping[str, str]) -> tuple[str, ...]:
    """Return the versions in which a record's origin differs from ``versions``; if its run does not state the origin,
    say only that."""
    if origin is None:
        return ("its run does not say what it depends on",)
    return origin.differences(replace(origin, versions=versions))


def _against(word: Record) -> Iterator[str]:
    """Yield the reasons against the last word on a candidate."""
    measured = word.measurement
    outcome = measured.outcome.value.replace("_", " ")
    detail = f": {' '.join(measured.detail.split())}" if measured.detail else ""
    if is_withdrawal(word):
        yield f"withdrawn: {outcome}{detail}"
    elif measured.outcome is not Outcome.OK:
        yield f"{outcome}{detail}"
    elif not measured.verified:
        by_others = word.run_id == BY_METASCHEDULE
        why = "MetaSchedule does not" if by_others else "it was clearly slower than the best"
        yield f"its output was not compared: {why}"


def _best_candidates(
    records: Sequence[Record], run_origins: Mapping[tuple[str, str], Origin], most: int
) -> set[tuple[Origin | None, str]]:
    """Return the ``most`` best candidates of a task for each origin."""
    best = _best_words(records, run_origins, most)
    return {(run_origins.get((word.run_id, class_of(word.task_id))), word.candidate.id) for word in best}


def _best_words(records: Sequence[Record], run_origins: Mapping[tuple[str, str], Origin], most: int) -> list[Record]:
    """Return the last words on the ``most`` best candidates of a task for each origin."""
    grouped: dict[Origin | None, dict[str, list[Record]]] = {}
    for record in records:
        origin = run_origins.get((record.run_id, class_of(record.task_id)))
        grouped.setdefault(origin, {}).setdefault(record.candidate.id, []).append(record)
    best: list[Record] = []
    for by_candidate in grouped.values():
        words = [word for each in by_candidate.values() if (word := last_word(each)) is not None]
        verified = sorted((w for w in words if w.measurement.verified), key=lambda w: w.measurement.rank_secs)
        best += verified[:most]
    return best
