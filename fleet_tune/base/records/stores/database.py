"""The file of a record store: its schema, and how it is made, opened and brought up to date."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

from fleet_tune.base.errors import RecordStoreError
from fleet_tune.base.records.files.atomic_file import sync_folder
from fleet_tune.base.records.stores.store_errors import ANOTHER_FOLDER, not_ours

SCHEMA_VERSION = 6

# What each version added to the one before: stores of older versions are brought up to date when a run opens them.
MIGRATIONS = {
    2: """
CREATE TABLE device_events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, device TEXT NOT NULL, run_id TEXT NOT NULL, kind TEXT NOT NULL,
    reason TEXT NOT NULL, unix_secs REAL NOT NULL, state BLOB NOT NULL
);
CREATE INDEX device_events_by_device ON device_events (device, seq);
""",
    3: """
ALTER TABLE records ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
""",
    4: """
ALTER TABLE records ADD COLUMN rank_secs REAL;
UPDATE records SET rank_secs = cost_secs;
CREATE INDEX records_by_rank ON records (workload, device_class, rank_secs) WHERE verified = 1;
""",
    # Leases are no events any more: the last state of a device has their number. Traces are kept beside the records.
    5: """
CREATE TABLE device_states (
    device TEXT PRIMARY KEY, run_id TEXT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL, unix_secs REAL NOT NULL,
    state BLOB NOT NULL
);
INSERT INTO device_states SELECT device, run_id, kind, reason, unix_secs, state FROM device_events
    WHERE seq IN (SELECT max(seq) FROM device_events GROUP BY device);
DELETE FROM device_events WHERE kind IN ('leased', 'released');
CREATE TABLE sketch_traces (id INTEGER PRIMARY KEY, sketch TEXT NOT NULL UNIQUE, trace BLOB NOT NULL);
CREATE TABLE traces (seq INTEGER PRIMARY KEY, sketch INTEGER NOT NULL, packed BLOB NOT NULL);
DROP INDEX IF EXISTS records_by_cost;
""",
    # Origins of the measurements of each run, and efforts on each task: for stores that several runs share.
    6: """
CREATE TABLE origins (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE);
CREATE TABLE run_origins (
    run_id TEXT NOT NULL, device_class TEXT NOT NULL, origin INTEGER NOT NULL, PRIMARY KEY (run_id, device_class)
) WITHOUT ROWID;
CREATE TABLE efforts (
    workload TEXT NOT NULL, device_class TEXT NOT NULL, run_id TEXT NOT NULL, secs REAL NOT NULL, trials REAL NOT NULL,
    PRIMARY KEY (workload, device_class, run_id)
) WITHOUT ROWID;
ALTER TABLE records ADD COLUMN origin INTEGER;
""",
}

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE workloads (
    hash TEXT PRIMARY KEY, name TEXT NOT NULL, flop REAL NOT NULL, module TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE tasks (
    workload TEXT NOT NULL REFERENCES workloads (hash), device_class TEXT NOT NULL,
    target TEXT NOT NULL, weight INTEGER NOT NULL, PRIMARY KEY (workload, device_class)
);
CREATE TABLE records (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE,
    workload TEXT NOT NULL, device_class TEXT NOT NULL, candidate TEXT NOT NULL,
    outcome TEXT NOT NULL, verified INTEGER NOT NULL, cost_secs REAL, body BLOB NOT NULL
);
CREATE INDEX records_by_cost ON records (workload, device_class, cost_secs) WHERE cost_secs IS NOT NULL;
CREATE INDEX records_by_candidate ON records (workload, device_class, candidate, outcome);
""" + "".join(MIGRATIONS.values())

_BUSY_SECS = 10.0
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_SIDE_FILES = ("-wal", "-shm", "-journal")
# A larger file is only looked at by SQLite: no unfinished database is so large.
_LARGEST_UNFINISHED_BYTES = 1 << 20
# The index of uids is accessed in random order: if it is not kept in memory, every record reads from the disk.
_CACHE_KIB = 65_536
_CHECKPOINT_PAGES = 8192  # of the write-ahead log, 32 MiB: each page of an index is written once, not with each commit


def open_for_writing(path: Path, busy_secs: float | None = None) -> sqlite3.Connection:
    """Open the database at ``path`` and bring it up to date. It is created if it is missing, or if its creation was
    interrupted. ``busy_secs``: how long a transaction waits for another process. None: ten seconds. Raise
    :class:`RecordStoreError` if the file is no record database, or one of a newer schema; sqlite3's errors and
    OSError."""
    if is_unfinished(path):
        _make(path)
    connection = sqlite3.connect(
        path, timeout=_BUSY_SECS if busy_secs is None else busy_secs, isolation_level=None, check_same_thread=False
    )
    with contextlib.ExitStack() as undo:
        undo.callback(connection.close)
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}")
        version = _check_schema(connection, path)
        connection.execute("PRAGMA journal_mode=WAL")
        _migrate(connection, version)
        undo.pop_all()
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open the database at ``path``, which may be of an older schema. Raise as :func:`open_for_writing` does."""
    # A database in WAL mode needs its side files even for reading. They cannot be made in a folder that cannot be
    # written. If no run left a log behind, the file alone is complete, and can be read as immutable.
    modes = ["mode=ro"]
    if not path.with_name(f"{path.name}-wal").exists():
        modes.append("mode=ro&immutable=1")
    for mode in modes:
        uri = f"file:{quote(str(path.absolute()))}?{mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECS, isolation_level=None, check_same_thread=False)
        try:
            _check_schema(connection, path)
        except sqlite3.OperationalError as error:
            connection.close()
            unwritable = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not unwritable or mode == modes[-1]:
                raise
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise AssertionError("unreachable: the last mode returns or raises")


def is_unfinished(path: Path) -> bool:
    """Return true if there is no database, or one whose creation was interrupted: an empty file, zeros, the beginning
    of a header, a database without a table."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return True
    if size <= _LARGEST_UNFINISHED_BYTES:
        content = path.read_bytes()
        if not content.strip(b"\0") or (size < _HEADER_BYTES and _MAGIC.startswith(content[: len(_MAGIC)])):
            return True
    with contextlib.closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=rw", uri=True)) as connection:
        return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))


def _make(path: Path) -> None:
    """Create a database in one step. Until it is complete it has another name."""
    beside = path.with_name(f"{path.name}.new")
    leftovers = [beside, *(each.with_name(each.name + end) for each in (path, beside) for end in _SIDE_FILES)]
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    try:
        with contextlib.closing(sqlite3.connect(beside, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}")
            created = {"schema_version": str(SCHEMA_VERSION), "created_unix_secs": repr(time.time())}
            connection.executemany("INSERT INTO meta VALUES (?, ?)", created.items())
            connection.execute("COMMIT")
        os.replace(beside, path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring a store of an older version up to date, with one transaction for each version."""
    for number in range(version + 1, SCHEMA_VERSION + 1):
        connection.executescript(
            f"BEGIN IMMEDIATE;{MIGRATIONS[number]}"
            f"UPDATE meta SET value = '{number}' WHERE key = 'schema_version';COMMIT;"
        )


def _check_schema(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema's version. Raise :class:`RecordStoreError` if there is none, or a newer one."""
    try:
        row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        version = int(row[0]) if row else 0
    except (sqlite3.OperationalError, ValueError) as error:
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        version = 0  # no table of that name, or no number in it: a database, but not ours
    if version < 1:
        raise not_ours(path)
    if version > SCHEMA_VERSION:
        raise RecordStoreError(
            f"{path} has schema version {version} and this fleet-tune reads up to version {SCHEMA_VERSION}",
            f"use the newer fleet-tune that wrote it, or {ANOTHER_FOLDER}",
        )
    return version
