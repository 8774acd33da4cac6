"""The record store: one SQLite file that is the only source of truth of a tuning run.

One process writes (:class:`RecordStore`, guarded by a lock on a file beside the database), any number read
(:class:`RecordReader`). WAL mode with ``synchronous=FULL``: what :meth:`RecordStore.append` has returned survives
``kill -9`` and a power cut. ``seq`` only grows and is the cursor of a stream of records; ``uid`` makes appending
idempotent.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fleet_tune.device_state import LEASE_KINDS, DeviceEvent
from fleet_tune.domain import DeviceClass, Outcome, Record, Task, Workload
from fleet_tune.errors import OutputFolderError, RecordStoreError, StoreInUseError, UnreadableRecordError
from fleet_tune.records.codec import decode_record, decode_state, encode_record, encode_state, readable_records
from fleet_tune.records.database import is_unfinished, open_for_reading, open_for_writing
from fleet_tune.records.lock_file import LockedError, take_lock
from fleet_tune.records.origin import Effort, Origin, encode_origin
from fleet_tune.records.store_errors import translated
from fleet_tune.records.traces import pack_trace, unpack_trace

# Seconds of the probe of a device, by its id: those of speed 1, and the usual ones. Another probe needs other keys.
PROBE = "2"
_UNIT = f"probe {PROBE} unit: "
_USUAL = f"probe {PROBE} usual: "

# The stored form of a record: seq, body, number of the sketch's trace, packed trace.
_RecordRow = tuple[int, bytes, int | None, bytes]

_EVENTS = "SELECT device, run_id, kind, reason, state, unix_secs, seq FROM device_events"
_LAST_STATES = "SELECT device, run_id, kind, reason, state, unix_secs, 0 FROM device_states"

_PAGE_RECORDS = 1000
_HIGHEST_SEQ = (1 << 63) - 1
_UIDS_AT_ONCE = 500
_LOCK_SECS = 10.0
_LOCK_POLL_SECS = 0.02


class RecordStore:
    """The one writing connection. May be used from any thread; one process at a time (a lock says so clearly).

    ``shared``: any number of processes write, in turns, each transaction waits ``busy_secs`` for those of others.

    Creates the folder and the database where they are missing, or were torn while they were being made. Raises
    :class:`RecordStoreError` when another process is writing, the file is no record database or of a newer schema, or
    the folder is read-only; :class:`DiskFullError` when the disk is full, here and in every method that writes.
    """

    def __init__(self, path: Path, *, shared: bool = False, busy_secs: float | None = None) -> None:
        self.path = path
        self._mutex = threading.Lock()
        self._sketch_traces: dict[str, tuple[int, bytes]] = {}  # see _sketch_trace
        self._origins: dict[tuple[str, str], int | None] = {}  # see _origin
        with translated(path), contextlib.ExitStack() as undo:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Of a shared store it is the lock of its making and migrating alone.
            lock = _lock_in_turn(path, busy_secs) if shared else _lock(path)
            undo.callback(os.close, lock)
            connection = open_for_writing(path, busy_secs)
            undo.pop_all()
        if shared:
            os.close(lock)
            lock = -1
        self._lock, self._connection = lock, connection

    def bind(self, meta: Mapping[str, str]) -> None:
        """Ties this store to what it is for (fingerprint and name of the network, targets).

        Keys not yet stored are stored. Raises :class:`OutputFolderError` where a stored value differs, and then
        stores nothing.
        """
        with self._transaction() as connection:
            stored: dict[str, str] = dict(connection.execute("SELECT key, value FROM meta"))
            differing = [key for key, value in meta.items() if stored.get(key, value) != value]
            if differing:
                details = ", ".join(
                    f"{key} is {_short(stored[key])} there and {_short(meta[key])} here" for key in differing
                )
                folder = self.path.parent
                raise OutputFolderError(
                    f"the output folder {folder} belongs to another run: {details}",
                    f"choose another folder with --out, or delete {folder}",
                )
            connection.executemany(
                "INSERT INTO meta VALUES (?, ?)", [(key, meta[key]) for key in meta if key not in stored]
            )

    def annotate(self, meta: Mapping[str, str]) -> None:
        """Stores what may change from run to run (what the devices said of themselves); replaces what was there."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value=excluded.value", list(meta.items())
            )

    def put_run(self, run_id: str, origins: Mapping[str, Origin]) -> None:
        """Stores what the records of a run depend on, by the name of the device class: what is appended of it later
        has its origin."""
        with self._transaction() as connection:
            for device_class, origin in origins.items():
                body = encode_origin(origin)
                connection.execute("INSERT INTO origins (body) VALUES (?) ON CONFLICT DO NOTHING", (body,))
                connection.execute(
                    "INSERT INTO run_origins SELECT ?, ?, id FROM origins WHERE body = ? ON CONFLICT DO NOTHING",
                    (run_id, device_class, body),
                )
        self._origins.clear()

    def put_efforts(self, efforts: Iterable[Effort]) -> None:
        """Stores what runs have spent on tasks; what was stored of a run and a task before is replaced."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO efforts VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET secs=excluded.secs,"
                " trials=excluded.trials",
                [(*_split(each.task_id), each.run_id, each.secs, each.trials) for each in efforts],
            )

    def unit(self, name: str, secs: float) -> float:
        """Seconds of the probe at which the speed of ``name`` counts as 1 in this store: ``secs`` where nothing was
        given before. ``name``: a device's id; of a shared store, :func:`class_unit`."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO NOTHING", (_UNIT + name, repr(secs)))
            (unit,) = connection.execute("SELECT value FROM meta WHERE key = ?", (_UNIT + name,)).fetchone()
            return float(unit)

    def probed(self, device_id: str, usual_secs: float) -> float:
        """A device's probe usually takes ``usual_secs``. The seconds at which its speed counts as 1 in this store: what
        was given first."""
        keys = _UNIT + device_id, _USUAL + device_id
        with self._transaction() as connection:
            store = "INSERT INTO meta VALUES (?, ?) ON CONFLICT"
            connection.execute(f"{store} DO NOTHING", (keys[0], repr(usual_secs)))
            connection.execute(f"{store} DO UPDATE SET value=excluded.value", (keys[1], repr(usual_secs)))
            (unit,) = connection.execute("SELECT value FROM meta WHERE key = ?", keys[:1]).fetchone()
            return float(unit)

    def put_task(self, task: Task) -> None:
        """Stores a task and its workload; a task stored before gets this target and weight."""
        with self._transaction() as connection:
            _put_workload(connection, task.workload)
            connection.execute(
                "INSERT INTO tasks VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET target=excluded.target,"
                " weight=excluded.weight",
                (task.workload.hash, task.device_class.name, task.device_class.target, task.weight),
            )

    def append(self, records: Sequence[Record]) -> list[int]:
        """Stores all records or none, and returns their ``seq`` in order, once they are durable.

        A record whose ``uid`` is stored already is not stored again: the ``seq`` of the stored one is returned.
        """
        return self.append_encoded(records)[0]

    def add(self, records: Sequence[Record]) -> int:
        """:meth:`append`, and how many were not stored before."""
        return len(self.append_encoded(records)[1])

    def append_encoded(
        self, records: Sequence[Record], events: Sequence[DeviceEvent] = ()
    ) -> tuple[list[int], list[tuple[int, bytes]]]:
        """:meth:`append`, and what was stored now: ``seq`` and body, which is without the trace, in order. With
        ``events`` of devices in the same transaction, as :meth:`append_device_events` stores them."""
        bodies = [encode_record(record, trace=False) for record in records]
        stored: list[tuple[int, bytes]] = []
        rows, traces = [], []
        with self._transaction() as connection:
            seqs = _stored_seqs(connection, [record.uid for record in records])
            last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'records'").fetchone()
            following = itertools.count(1 + (last[0] if last else 0))
            for record, body in zip(records, bodies, strict=True):
                if record.uid in seqs:
                    continue
                seq = seqs[record.uid] = next(following)
                rows.append((*_row(seq, record, body), self._origin(connection, record)))
                stored.append((seq, body))
                if record.trace:
                    number, like = self._sketch_trace(connection, record)
                    traces.append((seq, number, pack_trace(record.trace, like)))
            connection.executemany(
                "INSERT INTO records (seq, uid, workload, device_class, candidate, outcome, verified, cost_secs, body,"
                " revision, rank_secs, origin)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            connection.executemany("INSERT INTO traces VALUES (?, ?, ?)", traces)
            _put_device_events(connection, events)
        return [seqs[record.uid] for record in records], stored

    def _sketch_trace(self, connection: sqlite3.Connection, record: Record) -> tuple[int, bytes]:
        """The first trace of the record's sketch with its number; that of the record where it is the first."""
        sketch = f"{record.task_id} {record.candidate.sketch_id}"
        known = self._sketch_traces.get(sketch)
        if known is None:
            connection.execute(
                "INSERT INTO sketch_traces (sketch, trace) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (sketch, record.trace.encode()),
            )
            find = "SELECT id, trace FROM sketch_traces WHERE sketch = ?"
            known = self._sketch_traces[sketch] = connection.execute(find, (sketch,)).fetchone()
        return known

    def _origin(self, connection: sqlite3.Connection, record: Record) -> int | None:
        """The number of what the record depends on; None where its run has not said so."""
        key = record.run_id, _split(record.task_id)[1]
        if key not in self._origins:
            find = "SELECT origin FROM run_origins WHERE run_id = ? AND device_class = ?"
            row = connection.execute(find, key).fetchone()
            self._origins[key] = None if row is None else row[0]
        return self._origins[key]

    def append_device_events(self, events: Sequence[DeviceEvent]) -> None:
        """Stores all events or none; they are durable when this returns. Of the beginning and the end of a lease only
        the state of the device is kept, not the event: there are two for every batch of measurements."""
        with self._transaction() as connection:
            _put_device_events(connection, events)

    def close(self) -> None:
        """Closes the database and lets the next writer in. May be called twice.

        Afterwards the file holds everything by itself: what SQLite kept beside it is folded in. Of a shared store the
        last process does that.
        """
        with self._mutex:
            with contextlib.suppress(sqlite3.Error):  # closed before, or a reader is in the way: nothing is lost
                if self._lock >= 0:
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction: durable when the block is left normally, undone when it raises."""
        connection = self._connection
        with self._mutex, translated(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                self._sketch_traces.clear()  # what of them was stored is undone
                # SQLite has already rolled back by itself after some errors, a full disk among them.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise


class RecordReader:
    """A read-only view of a record database, which may be written at the same time. May be used from any thread.

    Every call sees what was committed when it began. What cannot be decoded is set aside: every answer is of the rest,
    and :meth:`unreadable` names it. Raises :class:`RecordStoreError` where there is no record database, or one of a
    newer schema.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()
        if not path.is_file():
            raise RecordStoreError(f"no such record database: {path}", "give the path of a records.db")
        self._sketch_traces: dict[int, bytes] = {}
        self._has_traces = False  # once it has, it keeps them
        with translated(path):
            self._connection = open_for_reading(path)

    def since(self, cursor: int, limit: int = _PAGE_RECORDS) -> list[Record]:
        """The first of the records with ``seq > cursor``, in order, at most ``limit``; none where there are no more."""
        where = "WHERE records.seq > ? ORDER BY records.seq LIMIT ?"
        while rows := self._record_rows(where, cursor, limit):
            if records := self._readable(rows):
                return records
            cursor = rows[-1][0]
        return []

    def encoded_since(self, cursor: int, limit: int = _PAGE_RECORDS) -> list[tuple[int, bytes]]:
        """The first ``limit`` of the records with ``seq > cursor`` as ``seq`` and body, damaged ones among them,
        without the trace where that is kept beside the record."""
        return self._rows("SELECT seq, body FROM records WHERE seq > ? ORDER BY seq LIMIT ?", cursor, limit)

    def __iter__(self) -> Iterator[Record]:
        """All records in order of ``seq``, those appended meanwhile included."""
        cursor = 0
        while page := self.since(cursor):
            yield from page
            cursor = page[-1].seq

    def last_seq(self) -> int:
        """The ``seq`` of the last record, 0 where there is none."""
        before = _HIGHEST_SEQ
        while rows := self._rows("SELECT seq, body FROM records WHERE seq < ? ORDER BY seq DESC LIMIT 1", before):
            before = rows[0][0]
            if readable_records(rows):
                return int(before)
        return 0

    def best(self, task_id: str, but: Collection[str] = ()) -> Record | None:
        """The incumbent: the verified record of the lowest :attr:`~fleet_tune.domain.Measurement.rank_secs`; the
        earlier one where two are equal. ``but``: ids of candidates that shall not be it.

        Of a candidate with revisions the last one counts, and only that; but one that ran and was not checked again
        takes nothing from what was verified before (older versions wrote such ones for a device that had drifted).
        """
        revised = (
            " AND NOT EXISTS (SELECT 1 FROM records AS later WHERE later.workload = records.workload"
            " AND later.device_class = records.device_class AND later.candidate = records.candidate"
            " AND later.seq > records.seq AND later.revision > 0 AND (later.verified = 1 OR later.cost_secs IS NULL))"
        )
        rank = "rank_secs" if self._has_column("rank_secs") else "cost_secs"
        where = (
            f"WHERE workload = ? AND device_class = ? AND {rank} IS NOT NULL"
            f" AND verified = 1{revised if self._has_column('revision') else ''}"
            f"{' AND candidate NOT IN (' + ', '.join('?' * len(but)) + ')' if but else ''}"
            f" ORDER BY {rank}, records.seq LIMIT 1 OFFSET ?"
        )
        at = 0
        while rows := self._record_rows(where, *_split(task_id), *but, at):
            if records := self._readable(rows):
                return records[0]
            at += 1
        return None

    def records_of(self, task_id: str) -> list[Record]:
        """All records of a task, in order of ``seq``."""
        where = "WHERE workload = ? AND device_class = ? ORDER BY records.seq"
        return self._readable(self._record_rows(where, *_split(task_id)))

    def unreadable(self) -> list[str]:
        """What is set aside, each with the reason: ``record 7: ...``. Reads the whole store."""
        reasons: list[str] = []
        cursor = 0
        where = "WHERE records.seq > ? ORDER BY records.seq LIMIT ?"
        while rows := self._record_rows(where, cursor, _PAGE_RECORDS):
            self._readable(rows, reasons)
            cursor = rows[-1][0]
        if self._has_table("device_events"):
            _readable_events(self._rows(f"{_EVENTS} ORDER BY seq"), reasons)
        if self._has_table("device_states"):
            _readable_events(self._rows(_LAST_STATES), reasons)
        return reasons

    def _record_rows(self, where: str, *values: str | int) -> list[_RecordRow]:
        """The stored form of the records that a condition with an order chooses."""
        self._has_traces = self._has_traces or self._has_table("traces")
        if not self._has_traces:
            return self._rows(f"SELECT records.seq, body, NULL, NULL FROM records {where}", *values)
        return self._rows(
            "SELECT records.seq, body, traces.sketch, packed FROM records"
            f" LEFT JOIN traces ON traces.seq = records.seq {where}",
            *values,
        )

    def _readable(self, rows: Iterable[_RecordRow], reasons: list[str] | None = None) -> list[Record]:
        """The records of those rows that can be decoded. ``reasons``: gets why the others cannot."""
        records = []
        for seq, body, sketch, packed in rows:
            try:
                trace = None if sketch is None else unpack_trace(packed, self._sketch_trace(sketch), f"record {seq}")
                records.append(decode_record(body, seq, trace))
            except UnreadableRecordError as error:
                if reasons is not None:
                    reasons.append(error.problem)
        return records

    def _sketch_trace(self, number: int) -> bytes:
        """The first trace of a sketch; empty, with which nothing can be unpacked, where it is gone."""
        if number not in self._sketch_traces:
            rows = self._rows("SELECT trace FROM sketch_traces WHERE id = ?", number)
            self._sketch_traces[number] = rows[0][0] if rows else b""
        return self._sketch_traces[number]

    def counts(self, task_id: str | None = None) -> dict[Outcome, int]:
        """Number of trials by outcome, of one task or of all; outcomes without one are left out."""
        is_trial = "revision = 0" if self._has_column("revision") else "1"
        trials = f"SELECT outcome, count(*) FROM records WHERE {is_trial}"
        if task_id is None:
            rows = self._rows(f"{trials} GROUP BY outcome")
        else:
            rows = self._rows(f"{trials} AND workload = ? AND device_class = ? GROUP BY outcome", *_split(task_id))
        return {Outcome(outcome): count for outcome, count in rows}

    def tried(self, after_seq: int = 0) -> set[str]:
        """The ids of the tasks with trials that came after ``after_seq``."""
        is_trial = "revision = 0" if self._has_column("revision") else "1"
        query = f"SELECT DISTINCT workload, device_class FROM records WHERE {is_trial} AND seq > ?"
        return {f"{workload}@{device_class}" for workload, device_class in self._rows(query, after_seq)}

    def workloads(self) -> list[Workload]:
        """The stored workloads, by name."""
        rows = self._rows("SELECT hash, name, flop, module FROM workloads ORDER BY name, hash")
        return [Workload(*row) for row in rows]

    def tasks(self) -> list[Task]:
        """The stored tasks in the order in which they were first stored."""
        rows = self._rows(
            "SELECT hash, name, flop, module, device_class, target, weight FROM tasks"
            " JOIN workloads ON hash = workload ORDER BY tasks.rowid"
        )
        return [Task(Workload(*row[:4]), DeviceClass(*row[4:6]), row[6]) for row in rows]

    def device_events(self, limit: int) -> list[DeviceEvent]:
        """The last ``limit`` changes of devices other than leases, the oldest first."""
        if not self._has_table("device_events"):
            return []
        rows = self._rows(
            f"{_EVENTS} WHERE kind NOT IN (?, ?) ORDER BY seq DESC LIMIT ?",
            *LEASE_KINDS,  # stores of older versions have them
            limit,
        )
        return _readable_events(reversed(rows))

    def device_states(self) -> dict[str, DeviceEvent]:
        """The last change of every device, by device id, leases among them: its state is the device's state. Where that
        is damaged, the last one of which an event was kept."""
        if not self._has_table("device_events"):
            return {}
        states: dict[str, DeviceEvent] = {}
        if self._has_table("device_states"):
            states = {event.device_id: event for event in _readable_events(self._rows(_LAST_STATES))}
        for (device,) in self._rows("SELECT DISTINCT device FROM device_events"):
            before = _HIGHEST_SEQ
            while device not in states and (
                rows := self._rows(f"{_EVENTS} WHERE device = ? AND seq < ? ORDER BY seq DESC LIMIT 1", device, before)
            ):
                states |= {event.device_id: event for event in _readable_events(rows)}
                before = rows[0][-1]
        return dict(sorted(states.items()))

    def _has_table(self, name: str) -> bool:
        """A store of an older version is only brought up to date by the next run that writes to it."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name))

    def _has_column(self, name: str) -> bool:
        """A store of an older version is only brought up to date by the next run that writes to it."""
        return bool(self._rows("SELECT 1 FROM pragma_table_info('records') WHERE name = ?", name))

    def meta(self) -> dict[str, str]:
        """What the store is bound to, with ``schema_version`` and ``created_unix_secs``."""
        return dict(self._rows("SELECT key, value FROM meta"))

    def unit_of(self, name: str) -> float | None:
        """See :meth:`RecordStore.unit`; None where nothing was given."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", _UNIT + name)
        return float(rows[0][0]) if rows else None

    def usual_speed(self, device_id: str) -> float:
        """The usual speed of a device as a multiple of that at which the store counts seconds; 1 where unknown."""
        rows = self._rows("SELECT key, value FROM meta WHERE key IN (?, ?)", _UNIT + device_id, _USUAL + device_id)
        secs = {key: float(value) for key, value in rows}
        return secs[_UNIT + device_id] / secs[_USUAL + device_id] if len(secs) == 2 else 1.0

    def close(self) -> None:
        """Closes the database. May be called twice."""
        with self._mutex:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rows(self, query: str, *values: str | int) -> list[tuple]:  # type: ignore[type-arg]
        with self._mutex, translated(self.path):
            return self._connection.execute(query, values).fetchall()


def _split(task_id: str) -> tuple[str, str]:
    """Workload hash and device class name of a task's id; see :attr:`fleet_tune.domain.Task.id`."""
    workload, _, device_class = task_id.partition("@")
    return workload, device_class


def _row(seq: int, record: Record, body: bytes) -> tuple[int | str | float | bytes | None, ...]:
    workload, device_class = _split(record.task_id)
    measurement = record.measurement
    ran = measurement.outcome is Outcome.OK
    return (
        seq,
        record.uid,
        workload,
        device_class,
        record.candidate.id,
        measurement.outcome.value,
        int(measurement.verified),
        measurement.cost_secs if ran else None,
        body,
        record.revision,
        measurement.rank_secs if ran else None,
    )


def _stored_seqs(connection: sqlite3.Connection, uids: Sequence[str]) -> dict[str, int]:
    """The ``seq`` of those of the ``uids`` that are stored."""
    seqs: dict[str, int] = {}
    for start in range(0, len(uids), _UIDS_AT_ONCE):
        some = uids[start : start + _UIDS_AT_ONCE]
        marks = ", ".join("?" * len(some))
        seqs.update(connection.execute(f"SELECT uid, seq FROM records WHERE uid IN ({marks})", some))
    return seqs


def _short(value: str) -> str:
    return repr(value if len(value) <= 60 else f"{value[:57]}...")


def _put_device_events(connection: sqlite3.Connection, events: Sequence[DeviceEvent]) -> None:
    rows = [
        (event.device_id, event.run_id, event.kind, event.reason, event.unix_secs, encode_state(event.state))
        for event in events
    ]
    kept = [row for event, row in zip(events, rows, strict=True) if event.kind not in LEASE_KINDS]
    last = {event.device_id: row for event, row in zip(events, rows, strict=True)}
    connection.executemany(
        "INSERT INTO device_events (device, run_id, kind, reason, unix_secs, state) VALUES (?, ?, ?, ?, ?, ?)", kept
    )
    connection.executemany(
        "INSERT INTO device_states VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET run_id=excluded.run_id,"
        " kind=excluded.kind, reason=excluded.reason, unix_secs=excluded.unix_secs, state=excluded.state",
        last.values(),
    )


def _put_workload(connection: sqlite3.Connection, workload: Workload) -> None:
    connection.execute(
        "INSERT INTO workloads VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (workload.hash, workload.name, workload.flop, workload.module),
    )


def check_store(path: Path) -> None:
    """Raises :class:`RecordStoreError` where a run could not use what is at ``path``; nothing, or a database that was
    torn while it was being made, it makes anew."""
    with translated(path):
        if is_unfinished(path):
            return
    RecordReader(path).close()


def class_unit(device_class: str) -> str:
    """Under which name a shared store keeps the unit of a device class' seconds: its devices have no other."""
    return f"class {device_class}"


@contextlib.contextmanager
def locked_store(path: Path, busy_secs: float | None = None) -> Iterator[None]:
    """Nobody opens the store to write it meanwhile. Raises :class:`RecordStoreError` where a run holds its own, or the
    lock is not free within ``busy_secs``."""
    with translated(path):
        lock = _lock_in_turn(path, busy_secs)
    try:
        yield
    finally:
        os.close(lock)


def _lock_in_turn(path: Path, busy_secs: float | None) -> int:
    """:func:`_lock`, after waiting for others."""
    deadline = time.monotonic() + (_LOCK_SECS if busy_secs is None else busy_secs)
    while True:
        try:
            return take_lock(path.with_name(f"{path.name}.lock"))
        except LockedError as error:
            if time.monotonic() >= deadline:
                raise RecordStoreError(
                    f"another program (process {error.owner}) has locked {path} for too long", "close it and run again"
                ) from None
            time.sleep(_LOCK_POLL_SECS)


def _lock(path: Path) -> int:
    """Takes the writer's lock and returns its file descriptor. The kernel frees it when the process ends, however."""
    try:
        return take_lock(path.with_name(f"{path.name}.lock"))
    except LockedError as error:
        raise StoreInUseError(
            f"another run (process {error.owner}) is writing to {path}",
            "wait until it ends, or choose another folder with --out",
        ) from None


def _readable_events(
    rows: Iterable[tuple[str, str, str, str, bytes, float, int]], reasons: list[str] | None = None
) -> list[DeviceEvent]:
    """Those changes of devices whose state can be decoded. ``reasons``: gets why the others cannot. ``seq`` is 0 for
    what is only the last state of its device."""
    events = []
    for device, run_id, kind, reason, state, unix_secs, seq in rows:
        try:
            events.append(DeviceEvent(device, run_id, kind, reason, decode_state(state), unix_secs, seq))
        except UnreadableRecordError as error:
            if reasons is not None:
                what = f"change {seq}" if seq else "the state"
                reasons.append(f"{what} of device {device}: {error.problem}")
    return events
