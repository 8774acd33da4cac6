"""The record store: one SQLite file that is the only source of truth of a tuning run.

One process writes (:class:`RecordStore`, guarded by a lock on a file beside the database), any number of processes read
(:class:`~fleet_tune.base.records.stores.reader.RecordReader`). WAL mode with ``synchronous=FULL``: records for which
:meth:`RecordStore.append` has returned survive ``kill -9`` and a power cut. ``seq`` only grows and is the cursor of a
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
"""Key of the meta table for the content hash of a network. Only the store of one run has it."""
NAME = "model"
"""Key of the meta table for the name of the network. Older folders have this key, so that it stays."""
PRECISION = "precision"
"""Key of the meta table for the precision that the network is converted to, as the options say it; missing if it is not
converted."""
SHAPES = "shapes"
"""Key of the meta table for the dynamic dimensions and typical extents of the network; missing for fixed shapes."""
_UIDS_AT_ONCE = 500
_LOCK_SECS = 10.0


class RecordStore:
    """The one writing connection. It may be used from any thread, by one process at a time (a lock makes sure of that).

    ``shared``: any number of processes write, in turns; each transaction waits up to ``busy_secs`` for those of others.

    Creates the folder and the database if they are missing, or if the creation was interrupted. Raises
    :class:`RecordStoreError` if another process is writing, the file is no record database or of a newer schema, or the
    folder is read-only; :class:`DiskFullError` if the disk is full, here and in every method that writes.
    """

    def __init__(self, path: Path, *, shared: bool = False, busy_secs: float | None = None) -> None:
        self.path = path
        self._mutex = threading.Lock()
        self._sketch_traces: dict[str, tuple[int, bytes]] = {}  # see _sketch_trace
        self._origins: dict[tuple[str, str], int | None] = {}  # see _origin
        with translated(path), contextlib.ExitStack() as undo:
            path.parent.mkdir(parents=True, exist_ok=True)
            # For a shared store this lock only guards creation and migration.
            lock = _lock_in_turn(path, busy_secs) if shared else _lock(path)
            undo.callback(release_lock, lock)
            connection = open_for_writing(path, busy_secs)
            undo.pop_all()
        if shared:
            release_lock(lock)
            lock = -1
        self._lock, self._connection = lock, connection

    def bind(self, meta: Mapping[str, str]) -> None:
        """Bind this store to its purpose (fingerprint and name of the network).

        Keys that are not stored yet are stored. Raise :class:`OutputFolderError` if a stored value differs, and then
        store nothing.
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

    def put_classes(self, fingerprints: Sequence[Mapping[str, Any]]) -> None:
        """Store the encoded fingerprints of devices, one for each class (see :func:`with_classes`). Raise
        :class:`OutputFolderError` if a class had another target, and then store nothing."""
        with self._transaction() as connection:
            stored: dict[str, str] = dict(connection.execute("SELECT key, value FROM meta"))
            meta = with_classes(stored, fingerprints, self.path.parent)
            _put_meta(connection, meta)

    def annotate(self, meta: Mapping[str, str]) -> None:
        """Store properties that may change. Stored values of these keys are replaced."""
        with self._transaction() as connection:
            _put_meta(connection, meta)

    def put_run(self, run_id: str, origins: Mapping[str, Origin]) -> None:
        """Store the origins of the records of a run, by the name of the device class. Records of the run that are
        appended later get these origins."""
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
        """Return the efforts that are not stored with the same values."""
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
        """Return the seconds of the probe at which the speed of ``name`` counts as 1 in this store. They are ``secs``
        if none were given before. ``name``: a device's id; for a shared store, :func:`class_unit`."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO NOTHING", (UNIT + name, repr(secs)))
            (unit,) = connection.execute("SELECT value FROM meta WHERE key = ?", (UNIT + name,)).fetchone()
            return float(unit)

    def probed(self, device_id: str, device_class: str, usual_secs: float) -> tuple[float, float]:
        """Return the :meth:`unit` of a device, and the speed at which people see the seconds of its class. If they are
        not stored yet, they follow from ``usual_secs`` of its probe. They stay once they are stored.

        A device without a unit gets the unit of its class, which is that of the class' first device. So the costs of
        all devices of a class are comparable.
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
        """Store the extra time of calls on a class, in seconds at speed 1, unless the stored one is better
        (:meth:`CallSecs.replaces`)."""
        with self._transaction() as connection:
            key = CALLS + device_class
            row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            known = None if row is None else CallSecs.decoded(row[0])
            if timed.replaces(known):
                _put_meta(connection, {key: timed.encoded()})

    def show_at(self, device_class: str, speed: float) -> None:
        """Set the speed at which people see the seconds of a class: the speed in the last run that has measured on
        it."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value=excluded.value",
                (SHOWN + device_class, repr(speed)),
            )

    def put_task(self, task: Task) -> None:
        """Store a task and its workload. A task that was stored before gets this target and weight."""
        with self._transaction() as connection:
            _put_workload(connection, task.workload)
            connection.execute(
                "INSERT INTO tasks VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET target=excluded.target,"
                " weight=excluded.weight",
                (task.workload.hash, task.device_class.name, task.device_class.target, task.weight),
            )

    def append(self, records: Sequence[Record]) -> list[int]:
        """Store all records or none, and return their ``seq`` in order once they are durable.

        A record whose ``uid`` is stored already is not stored again: the ``seq`` of the stored one is returned.
        """
        return self.append_encoded(records)[0]

    def add(self, records: Sequence[Record]) -> int:
        """Append as :meth:`append` does, and return the number of records that were not stored before."""
        return len(self.append_encoded(records)[1])

    def append_encoded(
        self, records: Sequence[Record], events: Sequence[DeviceEvent] = ()
    ) -> tuple[list[int], list[tuple[int, bytes]]]:
        """Append as :meth:`append` does, and also return the newly stored records in order, as ``seq`` and body without
        the trace. The ``events`` of devices are stored in the same transaction, as :meth:`append_device_events`
        does."""
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
        """Return the number of the record's origin. ``None`` if no origin of its run is stored."""
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
                self._sketch_traces.clear()  # traces that this transaction stored are undone
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
    """Return the ``seq`` of each of the ``uids`` that is stored."""
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
    # A workload that was named by its hash gets the name that a network gives it.
    connection.execute(
        "INSERT INTO workloads VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET name=excluded.name"
        " WHERE name = 'workload ' || substr(hash, 1, 8)",
        (workload.hash, workload.name, workload.flop, workload.module),
    )


def class_unit(device_class: str) -> str:
    """Return the name under which a shared store keeps the unit of a device class. Its devices have no units of their
    own."""
    return f"class {device_class}"


@contextlib.contextmanager
def locked_store(path: Path, busy_secs: float | None = None) -> Iterator[None]:
    """Keep other processes from opening the store to write. Raise :class:`RecordStoreError` if its lock is not free
    within ``busy_secs``, for example because a run holds the lock of its own store."""
    with translated(path):
        lock = _lock_in_turn(path, busy_secs)
    try:
        yield
    finally:
        release_lock(lock)


def _lock_in_turn(path: Path, busy_secs: float | None) -> int:
    """Take the writer's lock and return its file descriptor, after waiting for other processes."""
    most_secs = _LOCK_SECS if busy_secs is None else busy_secs
    try:
        return wait_for_lock(path.with_name(f"{path.name}.lock"), f"the store {path}", most_secs)
    except LockedError as error:
        raise RecordStoreError(
            f"another program ({error.who}) has locked {path} for too long", "close it and run again"
        ) from None


def _lock(path: Path) -> int:
    """Take the writer's lock and return its file descriptor. The kernel frees the lock when the process ends, in
    whatever way."""
    try:
        return take_lock(path.with_name(f"{path.name}.lock"))
    except LockedError as error:
        raise StoreInUseError(
            f"another run ({error.who}) is writing to {path}",
            "wait until it ends, or choose another folder with --out",
        ) from None
