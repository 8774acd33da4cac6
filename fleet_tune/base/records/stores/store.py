"""The record store: one SQLite file that is the only source of truth of a tuning run.

One process writes (:class:`RecordStore`, guarded by a lock on a file beside the database), any number read
(:class:`~fleet_tune.base.records.stores.reader.RecordReader`). WAL mode with ``synchronous=FULL``: what
:meth:`RecordStore.append` has returned survives ``kill -9`` and a power cut. ``seq`` only grows and is the cursor of a
stream of records; ``uid`` makes appending idempotent."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fleet_tune.base.device_state import LEASE_KINDS, DeviceEvent
from fleet_tune.base.domain import Outcome, Record, Task, Workload
from fleet_tune.base.errors import OutputFolderError, RecordStoreError, StoreInUseError
from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.records.files.lock_file import LockedError, release_lock, take_lock, wait_for_lock
from fleet_tune.base.records.stores.classes import with_classes
from fleet_tune.base.records.stores.codec import encode_record, encode_state
from fleet_tune.base.records.stores.database import open_for_writing
from fleet_tune.base.records.stores.origin import Effort, Origin, encode_origin
from fleet_tune.base.records.stores.reader import split_task_id
from fleet_tune.base.records.stores.store_errors import translated
from fleet_tune.base.records.stores.stored_speeds import CALLS, SHOWN, UNIT
from fleet_tune.base.records.stores.traces import pack_trace

BOUND = "network"
"""The key of a store's meta that only a run's own one has: the content hash of its network."""
NAME = "model"
"""That of what the network is called; a stored word: older folders have it."""
PRECISION = "precision"
"""That of what the network is converted to, as the options say it; missing where it is as it came."""
SHAPES = "shapes"
"""That of its dynamic dimension and the typical extent, for which it is tuned; missing for fixed shapes."""
_UIDS_AT_ONCE = 500
_LOCK_SECS = 10.0


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
            undo.callback(release_lock, lock)
            connection = open_for_writing(path, busy_secs)
            undo.pop_all()
        if shared:
            release_lock(lock)
            lock = -1
        self._lock, self._connection = lock, connection

    def bind(self, meta: Mapping[str, str]) -> None:
        """Ties this store to what it is for (fingerprint and name of the network).

        Keys not yet stored are stored. Raises :class:`OutputFolderError` where a stored value differs, and then
        stores nothing.
        """
        with self._transaction() as connection:
            stored: dict[str, str] = dict(connection.execute("SELECT key, value FROM meta"))
            differing = [key for key, value in meta.items() if stored.get(key, value) != value]
            if differing:
                folder = self.path.parent
                raise OutputFolderError(
                    f"the output folder {folder} belongs to another run: {_difference(stored, meta, differing)}",
                    f"choose another folder with --out, or delete {folder}",
                )
            connection.executemany(
                "INSERT INTO meta VALUES (?, ?)", [(key, meta[key]) for key in meta if key not in stored]
            )

    def put_classes(self, prints: Sequence[Mapping[str, Any]]) -> None:
        """Stores what devices say of themselves, one of each class (see :func:`with_classes`). Raises
        :class:`OutputFolderError` where one of them had another target, and then stores nothing."""
        with self._transaction() as connection:
            stored: dict[str, str] = dict(connection.execute("SELECT key, value FROM meta"))
            meta = with_classes(stored, prints, self.path.parent)
            _put_meta(connection, meta)

    def annotate(self, meta: Mapping[str, str]) -> None:
        """Stores what may change from time to time; replaces what was there."""
        with self._transaction() as connection:
            _put_meta(connection, meta)

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

    def lacking(self, efforts: Sequence[Effort]) -> list[Effort]:
        """Return the efforts that are not stored just so."""
        with self._mutex, translated(self.path):
            rows = self._connection.execute("SELECT workload, device_class, run_id, secs, trials FROM efforts")
            known = {Effort(f"{workload}@{name}", *others) for workload, name, *others in rows}
        return [each for each in efforts if each not in known]

    def put_efforts(self, efforts: Iterable[Effort]) -> None:
        """Store the efforts of runs on tasks. An earlier effort of the same run and task is replaced."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT INTO efforts VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET secs=excluded.secs,"
                " trials=excluded.trials",
                [(*split_task_id(each.task_id), each.run_id, each.secs, each.trials) for each in efforts],
            )

    def unit(self, name: str, secs: float) -> float:
        """Seconds of the probe at which the speed of ``name`` counts as 1 in this store: ``secs`` where nothing was
        given before. ``name``: a device's id; of a shared store, :func:`class_unit`."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO NOTHING", (UNIT + name, repr(secs)))
            (unit,) = connection.execute("SELECT value FROM meta WHERE key = ?", (UNIT + name,)).fetchone()
            return float(unit)

    def probed(self, device_id: str, device_class: str, usual_secs: float) -> tuple[float, float]:
        """Return the :meth:`unit` of a device, and the speed at which people see the seconds of its class. Both follow
        from ``usual_secs`` of its probe where they are not given yet, and stay.

        A device without a unit has that of its class, which is the unit of the class' first device: so the costs of all
        its devices are comparable.
        """
        own, of_class, shown = UNIT + device_id, UNIT + class_unit(device_class), SHOWN + device_class
        with self._transaction() as connection:
            rows = connection.execute("SELECT key, value FROM meta WHERE key IN (?, ?)", (own, of_class))
            known = dict(rows.fetchall())
            unit = known.get(own) or known.get(of_class) or repr(usual_secs)
            values = [(own, unit), (of_class, unit), (shown, repr(float(unit) / usual_secs))]
            connection.executemany("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO NOTHING", values)
            (speed,) = connection.execute("SELECT value FROM meta WHERE key = ?", (shown,)).fetchone()
            return float(unit), float(speed)

    def calls_timed(self, device_class: str, timed: CallSecs) -> None:
        """Store what calls take on a class, in seconds at speed 1, unless it is known from more kernels."""
        with self._transaction() as connection:
            key = CALLS + device_class
            row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            known = None if row is None else CallSecs.decoded(row[0])
            if timed.replaces(known):
                _put_meta(connection, {key: timed.encoded()})

    def show_at(self, device_class: str, speed: float) -> None:
        """Set the speed at which people see the seconds of a class: that of the last run that has measured on it."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value=excluded.value",
                (SHOWN + device_class, repr(speed)),
            )

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
        """Return the first trace of the record's sketch with its number; the record's own if it is the first."""
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
        """Return the number of the record's origin. None if its run has not said it."""
        key = record.run_id, split_task_id(record.task_id)[1]
        if key not in self._origins:
            find = "SELECT origin FROM run_origins WHERE run_id = ? AND device_class = ?"
            row = connection.execute(find, key).fetchone()
            self._origins[key] = None if row is None else row[0]
        return self._origins[key]

    def append_device_events(self, events: Sequence[DeviceEvent]) -> None:
        """Store all events or none; they are durable when this returns.

        The beginning and the end of a lease change only the stored state of the device: there are two for every batch
        of measurements.
        """
        with self._transaction() as connection:
            _put_device_events(connection, events)

    def close(self) -> None:
        """Close the database and let the next writer in. It may be called twice.

        Afterwards the file holds everything by itself: SQLite's other files are folded in. For a shared store the last
        process does that.
        """
        with self._mutex:
            with contextlib.suppress(sqlite3.Error):  # closed before, or a reader is in the way: nothing is lost
                if self._lock >= 0:
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()
            if self._lock >= 0:
                release_lock(self._lock)
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


def _put_meta(connection: sqlite3.Connection, meta: Mapping[str, str]) -> None:
    connection.executemany(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value=excluded.value", list(meta.items())
    )


def _row(seq: int, record: Record, body: bytes) -> tuple[int | str | float | bytes | None, ...]:
    workload, device_class = split_task_id(record.task_id)
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


def _difference(stored: Mapping[str, str], meta: Mapping[str, str], differing: Sequence[str]) -> str:
    """Describe the difference between the store's purpose and its intended use."""
    if NAME in differing:
        return f"it is of the network {_short(stored[NAME])}, and not of {_short(meta[NAME])}"
    if stored.get(PRECISION) != meta.get(PRECISION):
        there, here = (
            f"with --precision {each[PRECISION]}" if PRECISION in each else "without --precision"
            for each in (stored, meta)
        )
        return f"its run was {there}, and this one is {here}"
    if stored.get(SHAPES) != meta.get(SHAPES):
        there, here = (each.get(SHAPES, "fixed shapes") for each in (stored, meta))
        return f"its run was for {there}, and this one is for {here} (by --shapes and --shapes-weights)"
    if BOUND in differing and NAME in meta:
        return (
            f"its network is called {_short(meta[NAME])} too, but has other operators, shapes or weights, or another "
            "version of fleet-tune has read it otherwise"
        )
    return ", ".join(f"{key} is {_short(stored[key])} there and {_short(meta[key])} here" for key in differing)


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
    # What had to be named by its hash gets the name that a network gives it.
    connection.execute(
        "INSERT INTO workloads VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET name=excluded.name"
        " WHERE name = 'workload ' || substr(hash, 1, 8)",
        (workload.hash, workload.name, workload.flop, workload.module),
    )


def class_unit(device_class: str) -> str:
    """Under which name a shared store keeps the unit of a device class' seconds: its devices have no other."""
    return f"class {device_class}"


@contextlib.contextmanager
def locked_store(path: Path, busy_secs: float | None = None) -> Iterator[None]:
    """Keep others from opening the store to write it. Raises :class:`RecordStoreError` if a run holds its own, or the
    lock is not free within ``busy_secs``."""
    with translated(path):
        lock = _lock_in_turn(path, busy_secs)
    try:
        yield
    finally:
        release_lock(lock)


def _lock_in_turn(path: Path, busy_secs: float | None) -> int:
    """:func:`_lock`, after waiting for others."""
    most_secs = _LOCK_SECS if busy_secs is None else busy_secs
    try:
        return wait_for_lock(path.with_name(f"{path.name}.lock"), f"the store {path}", most_secs)
    except LockedError as error:
        raise RecordStoreError(
            f"another program ({error.who}) has locked {path} for too long", "close it and run again"
        ) from None


def _lock(path: Path) -> int:
    """Takes the writer's lock and returns its file descriptor. The kernel frees it when the process ends, however."""
    try:
        return take_lock(path.with_name(f"{path.name}.lock"))
    except LockedError as error:
        raise StoreInUseError(
            f"another run ({error.who}) is writing to {path}",
            "wait until it ends, or choose another folder with --out",
        ) from None
