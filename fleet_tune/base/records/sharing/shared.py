"""Stores that runs share: the records that another run may use, and the copying of records from one store to another.

A shared store is a record database like a run's own store. Any number of processes write to it, each in short
transactions. Its seconds are counted at one unit for each device class; copied records are rescaled to it. A record is
identified by its ``uid``: copying it again changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet_tune.base.domain import Measurement, Outcome, Record, Task
from fleet_tune.base.errors import RecordStoreError, UnreadableRecordError
from fleet_tune.base.records.files.network_drive import network_drive
from fleet_tune.base.records.sharing.store_place import StorePlace, place_of, user_data
from fleet_tune.base.records.stores.origin import Effort, Origin, decode_origin
from fleet_tune.base.records.stores.reader import RecordReader, check_store, split_task_id
from fleet_tune.base.records.stores.store import RecordStore, class_unit
from fleet_tune.base.sketch import IMPORTED

STORE_FILE = "store.db"
STORE_VARIABLE = "FLEET_TUNE_STORE"
"""The environment variable that names the store to use instead of the default one; empty for no store."""
SHIPPED_VARIABLE = "FLEET_TUNE_SHIPPED"
"""The environment variable that names the set of records to use instead of the one that comes with fleet-tune
(:mod:`fleet_tune.runs.shared_store.shipped`); empty for no records."""
WITHOUT = "give another file with --store, or go without one with --no-store"
_LOG = logging.getLogger(__name__)
_IDS_AT_LEAST = 16
_IDS_AT_ONCE = 500


def default_place() -> StorePlace | None:
    """Return the place of the store of this user: the one in :data:`STORE_VARIABLE`, else a file in the user's data
    folder. None if that variable is empty, or the user has no home. Raise :class:`RequestError`."""
    named = os.environ.get(STORE_VARIABLE)
    if named is not None:
        return place_of(named) if named else None
    try:
        return StorePlace(user_data() / STORE_FILE)
    except RuntimeError:
        return None


def check_shared(path: Path) -> None:
    """Raise :class:`RecordStoreError` if runs could not share the store at ``path``. Warn if it is on a network file
    system."""
    with _told():
        if path.is_dir():
            raise RecordStoreError(f"{path} is a folder, not a record database", WITHOUT)
        check_store(path)
    drive = network_drive(path)
    if drive:
        _LOG.warning(
            "the store %s is on a network file system (%s): SQLite's log is of one machine, so use it from one machine "
            "at a time, or give a file of this machine with --store",
            path,
            drive,
        )


@contextlib.contextmanager
def shared_store(path: Path, busy_secs: float | None = None) -> Iterator[RecordStore]:
    """Open the store at ``path`` for a few transactions. It is created if it is missing."""
    with _told(), RecordStore(path, shared=True, busy_secs=busy_secs) as store:
        yield store


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Raise errors of a shared store with a next step of their own."""
    try:
        yield
    except UnreadableRecordError:
        raise
    except RecordStoreError as error:
        raise type(error)(error.problem, WITHOUT) from error


class SharedReader(RecordReader):
    """Reader of a shared store, or of a run's own store, for the records that other runs may use by their origins."""

    def origins(self) -> dict[int, Origin]:
        """Return the origins of this store's records, by number. Origins that cannot be read are skipped."""
        if not self.has_table("origins"):
            return {}
        found = {}
        for number, body in self.rows("SELECT id, body FROM origins"):
            with contextlib.suppress(UnreadableRecordError):
                found[number] = decode_origin(body)
        return found

    def run_origins(self, only: Collection[str] | None = None) -> dict[tuple[str, str], Origin]:
        """Return the origins of the records of each run and device class. ``only``: of these runs."""
        origins = {} if only is not None and not only else self.origins()
        if not origins:
            return {}
        query = "SELECT run_id, device_class, origin FROM run_origins"
        rows = self.rows(query) if only is None else self.rows_in(f"{query} WHERE run_id IN", only)
        return {(run_id, name): origins[number] for run_id, name, number in rows if number in origins}

    def numbers_of(self, origin: Origin) -> frozenset[int]:
        """Return the numbers of the origins that are equal to ``origin``. Empty if no record has that origin."""
        return frozenset(number for number, each in self.origins().items() if each == origin)

    def efforts(self) -> list[tuple[Effort, Origin]]:
        """Return the efforts of runs, with the origins of their records."""
        if not self.has_table("efforts"):
            return []
        origins = self.run_origins()
        rows = self.rows("SELECT workload, device_class, run_id, secs, trials FROM efforts")
        return [
            (Effort(f"{workload}@{name}", run_id, secs, trials), origins[run_id, name])
            for workload, name, run_id, secs, trials in rows
            if (run_id, name) in origins
        ]

    def unit_secs(self, device_id: str, device_class: str) -> float | None:
        """Return the unit of a device, or else of its class: seconds of the probe at speed 1. ``None`` if the store has
        neither."""
        for name in (device_id, class_unit(device_class)):
            secs = self.speeds.unit_of(name)
            if secs is not None:
                return secs
        return None

    def class_units(self) -> dict[str, float]:
        """Return the unit of each device class by :func:`class_unit`. In a run's own store it is the unit of the first
        device of the class that has measured something; else it is the one of the class."""
        units: dict[str, float] = {}
        for task in self.tasks():
            name = task.device_class.name
            if class_unit(name) not in units:
                device = self._first_device(name)
                secs = self.unit_secs(device, name)
                if secs is not None:
                    units[class_unit(name)] = secs
        return units

    def _first_device(self, device_class: str) -> str:
        """Return the device of the first record of a class. Empty if there is none."""
        rows = self._record_rows("WHERE device_class = ? AND revision = 0 ORDER BY records.seq LIMIT 1", device_class)
        return next((record.device_id for record in self._readable(rows)), "")

    def pages(self, cursor: int = 0) -> Iterator[list[Record]]:
        """Yield the records after ``cursor``, many at a time."""
        while page := self.since(cursor):
            yield page
            cursor = page[-1].seq

    def workload_sizes(self, device_class: str) -> list[tuple[str, str, float]]:
        """Return the hash, name and operations of each workload that was tuned for a device class."""
        query = "SELECT hash, name, flop FROM tasks JOIN workloads ON hash = workload WHERE device_class = ?"
        return self.rows(query, device_class)

    def some_of(self, task_id: str, most: int) -> list[Record]:
        """Return the records of a task; if there are more than ``most``, a selection that is spread evenly over all of
        them."""
        where = "WHERE workload = ? AND device_class = ?"
        rows = self.rows(f"SELECT seq FROM records {where} ORDER BY seq", *split_task_id(task_id))
        seqs = [rows[at * len(rows) // most][0] for at in range(most)] if len(rows) > most else [seq for (seq,) in rows]
        found: list[Record] = []
        for start in range(0, len(seqs), _IDS_AT_ONCE):
            some = seqs[start : start + _IDS_AT_ONCE]
            condition = f"WHERE records.seq IN ({', '.join('?' * len(some))}) ORDER BY records.seq"
            found += self._readable(self._record_rows(condition, *some))
        return found

    def imported_sketches(self) -> dict[str, tuple[str, ...]]:
        """Return, by task id, a trace of each sketch of the task that no sketch rule made: see
        :attr:`fleet_tune.base.domain.Task.imported`."""
        if not self.has_table("sketch_traces"):
            return {}
        rows = self.rows("SELECT sketch, trace FROM sketch_traces WHERE sketch LIKE ? ORDER BY id", f"% {IMPORTED}-%")
        found: dict[str, tuple[str, ...]] = {}
        for sketch, trace in rows:
            task_id = sketch.partition(" ")[0]
            found[task_id] = (*found.get(task_id, ()), trace.decode(errors="replace"))
        return found

    def revisions(self, task_id: str) -> dict[str, int]:
        """Return the last revision of each candidate of a task that the store has a record of, by candidate id."""
        where = "WHERE workload = ? AND device_class = ? GROUP BY candidate"
        return dict(self.rows(f"SELECT candidate, max(revision) FROM records {where}", *task_id.partition("@")[::2]))

    def last_words(self, task_id: str, origins: Collection[int], most: int) -> list[Record]:
        """Return the last words on the ``most`` best candidates of a task with one of these origins, one record each,
        the best first. Unverified ones and failures follow; a candidate that was verified once and found wrong later is
        a failure."""
        if not origins:
            return []
        where = f"workload = ? AND device_class = ? AND origin IN ({', '.join('?' * len(origins))})"
        workload, _, device_class = task_id.partition("@")
        values: tuple[str | int, ...] = (workload, device_class, *sorted(origins))
        # Candidates that were verified once are in the order of their best measurement ever. The last word on a
        # candidate is no better than that, but may be worse, or a withdrawal.
        least = "coalesce(CASE WHEN max(verified) THEN min(rank_secs) END, 1e999)"
        ordered = self.rows(
            f"SELECT candidate, {least} FROM records WHERE {where} GROUP BY candidate"
            " ORDER BY 2, coalesce(min(rank_secs), 1e999), min(seq)",
            *values,
        )
        words: list[Record] = []
        at = 0
        while at < len(ordered) and not _are_enough(words, most, ordered[at][1]):
            some = [name for name, _ in ordered[at : at + min(max(most, _IDS_AT_LEAST), _IDS_AT_ONCE)]]
            words += self._words_of(some, where, values)
            at += len(some)
        words.sort(key=lambda each: (not each.measurement.verified, each.measurement.rank_secs, each.seq))
        return words[:most]

    def found_wrong(self, task_id: str, origins: Collection[int]) -> list[Record]:
        """Return the records of candidates of a task with one of these origins that were found wrong."""
        if not origins:
            return []
        where = f"workload = ? AND device_class = ? AND origin IN ({', '.join('?' * len(origins))})"
        workload, _, device_class = task_id.partition("@")
        values: tuple[str | int, ...] = (workload, device_class, *sorted(origins))
        failed = f"(revision > 0 AND outcome != '{Outcome.OK.value}') OR outcome = '{Outcome.WRONG_OUTPUT.value}'"
        rows = self.rows(f"SELECT DISTINCT candidate FROM records WHERE {where} AND ({failed})", *values)
        names = [name for (name,) in rows]
        batches = (names[start : start + _IDS_AT_ONCE] for start in range(0, len(names), _IDS_AT_ONCE))
        return [word for some in batches for word in self._words_of(some, where, values) if is_found_wrong(word)]

    def _words_of(self, candidates: Sequence[str], where: str, values: Sequence[str | int]) -> list[Record]:
        """Return the last word on each of these candidates, if there is one, among the records that a condition
        chooses."""
        marks = ", ".join("?" * len(candidates))
        found: dict[str, list[Record]] = {}
        condition = f"WHERE {where} AND candidate IN ({marks}) ORDER BY records.seq"
        for record in self._readable(self._record_rows(condition, *values, *candidates)):
            found.setdefault(record.candidate.id, []).append(record)
        return [word for records in found.values() if (word := last_word(records)) is not None]


def _are_enough(words: Sequence[Record], most: int, least_secs: float) -> bool:
    """Return true if the ``most`` best are among these words. All other candidates take at least ``least_secs``;
    infinite if none of them was ever verified."""
    if math.isinf(least_secs) and len(words) >= most:
        return True
    return sum(1 for each in words if each.measurement.verified and each.measurement.rank_secs <= least_secs) >= most


def last_word(records: Sequence[Record]) -> Record | None:
    """Return the last word on a candidate: the one of its ``records`` that counts. They are in the order of ``seq``.
    ``None`` if no record counts.

    A revision replaces trials. A candidate that was found wrong once stays wrong. A record whose output was not
    compared does not replace a verified one (see :meth:`~fleet_tune.base.records.stores.reader.RecordReader.best`).
    """
    word: Record | None = None
    for record in records:
        if not record.measurement.outcome.blames_candidate:
            continue
        if is_found_wrong(record):
            return record
        if word is None or _says(record) >= _says(word):
            word = record
    return word


def _says(record: Record) -> tuple[bool, int]:
    """Return the precedence of a record among those of its candidate. Of two equal ones the later record counts."""
    return record.measurement.verified, record.revision


def is_withdrawal(record: Record) -> bool:
    """Return true if the record says that a candidate which ran before was found to be wrong."""
    return record.revision > 0 and record.measurement.outcome is not Outcome.OK


def is_found_wrong(record: Record) -> bool:
    """Return true if the record says for good that its candidate is wrong: it is a withdrawal, or its output was
    wrong."""
    return is_withdrawal(record) or record.measurement.outcome is Outcome.WRONG_OUTPUT


def rescaled(record: Record, factor: float) -> Record:
    """Return the record with its seconds converted to another unit: ``factor`` times as many."""
    measured = record.measurement
    if factor == 1.0 or measured.outcome is not Outcome.OK:
        return record
    comparison = measured.comparison
    if comparison is not None:
        comparison = dataclasses.replace(comparison, against_rank_secs=comparison.against_rank_secs * factor)
    changed: Measurement = dataclasses.replace(measured, speed=measured.speed * factor, comparison=comparison)
    return dataclasses.replace(record, measurement=changed)


@dataclass(frozen=True)
class CopyResult:
    """``records``: number of records that the target did not have. ``cursor``: the last ``seq`` that was looked at.
    ``left_out``: number of records that were not copied, because the origin of their run or their task is not known, or
    because their seconds are not valid in the target's unit."""

    records: int
    cursor: int
    left_out: int = 0


class Source(Protocol):
    """Source of copied records: a store (:class:`SharedReader`), or a file."""

    def tasks(self, only: Collection[str] | None = None) -> list[Task]: ...

    def run_origins(self, only: Collection[str] | None = None) -> dict[tuple[str, str], Origin]: ...

    def efforts(self) -> list[tuple[Effort, Origin]]: ...

    def unit_secs(self, device_id: str, device_class: str) -> float | None: ...

    def pages(self, cursor: int = 0) -> Iterator[list[Record]]: ...


class Target(Protocol):
    """Target of copied records: a store (:class:`~fleet_tune.base.records.stores.store.RecordStore`), or a file."""

    def put_task(self, task: Task) -> None: ...

    def put_run(self, run_id: str, origins: Mapping[str, Origin]) -> None: ...

    def lacking(self, efforts: Sequence[Effort]) -> list[Effort]: ...

    def put_efforts(self, efforts: Iterable[Effort]) -> None: ...

    def unit(self, name: str, secs: float) -> float: ...

    def add(self, records: Sequence[Record]) -> int: ...


def copy_records(
    source: Source,
    target: Target,
    cursor: int = 0,
    is_late: Callable[[], bool] = lambda: False,
    *,
    with_efforts: bool = True,
) -> CopyResult:
    """Copy the records of ``source`` after ``cursor`` to ``target``, with their tasks and origins, one page at a time.

    The cost depends on the number of copied records, not on the size of the stores. Existing records of the target stay
    as they are. ``is_late`` is called after each page. If it returns true, the rest is skipped, and so are the efforts:
    the records for which they count may be in the rest. ``with_efforts``: look through the efforts of all runs and
    write those that the target lacks.
    """
    origins: dict[tuple[str, str], Origin] = {}
    tasks: dict[str, Task] = {}
    put_tasks: set[str] = set()
    put_runs: set[tuple[str, str]] = set()
    units: dict[tuple[str, str], float] = {}

    def look_up(page: Sequence[Record]) -> None:
        # This is repeated for each page: a class may have joined a run later, and its records are on later pages.
        runs = {each.run_id for each in page if _run_of(each) not in origins}
        if runs:
            origins.update(source.run_origins(runs))
        ids = {each.task_id for each in page} - tasks.keys()
        if ids:
            tasks.update({task.id: task for task in source.tasks(ids)})

    def put_run(run: tuple[str, str], origin: Origin) -> None:
        if run not in put_runs:
            target.put_run(run[0], {run[1]: origin})
            put_runs.add(run)

    def counted(record: Record) -> list[Record]:
        """Return the record with seconds in the target's unit; nothing if they are not valid there."""
        place = record.device_id, class_of(record.task_id)
        if place not in units:
            secs = source.unit_secs(*place)
            units[place] = 1.0 if secs is None else target.unit(class_unit(place[1]), secs) / secs
        try:
            return [rescaled(record, units[place])]
        except ValueError:
            return []

    copied = left_out = 0
    for page in source.pages(cursor):
        cursor = page[-1].seq
        look_up(page)
        usable = [each for each in page if _run_of(each) in origins and each.task_id in tasks]
        for record in usable:
            put_run(_run_of(record), origins[_run_of(record)])
            if record.task_id not in put_tasks:
                target.put_task(tasks[record.task_id])
                put_tasks.add(record.task_id)
        ready = [each for record in usable for each in counted(record)]
        left_out += len(page) - len(ready)
        copied += target.add(ready)
        if is_late():
            return CopyResult(copied, cursor, left_out)
    if with_efforts:
        spent = dict(source.efforts())
        lacking = target.lacking(list(spent))
        for effort in lacking:
            put_run((effort.run_id, class_of(effort.task_id)), spent[effort])
        if lacking:
            target.put_efforts(lacking)
    return CopyResult(copied, cursor, left_out)


def class_of(task_id: str) -> str:
    """Return the name of the device class in a task's id."""
    return task_id.partition("@")[2]


def _run_of(record: Record) -> tuple[str, str]:
    return record.run_id, class_of(record.task_id)
