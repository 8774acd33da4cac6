"""Orders of people for the devices of a fleet file. They are in a small SQLite file beside it, which the command line
and runs share.

``fleet.toml`` has its orders in ``fleet.orders.db``. An order (drain, maintenance, retire, resume) holds for every run
that uses the fleet file, also for later runs; a current run obeys within a second. The file also lists the last runs
that used the fleet, so that ``fleet-tune device list`` finds their records of the devices.

Any number of processes read and write it: every call opens the file for one short transaction. A fleet without a file,
or a file that does not exist yet, has no orders.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fleet_tune.base.device_state import Admin
from fleet_tune.base.errors import FleetOrdersError

_VERSION = 1
_BUSY_SECS = 5.0
_SCHEMA = (
    "CREATE TABLE orders (seq INTEGER PRIMARY KEY AUTOINCREMENT, device TEXT NOT NULL, admin TEXT NOT NULL,"
    " reason TEXT NOT NULL, unix_secs REAL NOT NULL)",
    "CREATE TABLE runs (run_id TEXT PRIMARY KEY, records TEXT NOT NULL, unix_secs REAL NOT NULL)",
    f"PRAGMA user_version={_VERSION}",
)


@dataclass(frozen=True, slots=True)
class Order:
    """``admin``: the ordered state of the device (DRAINING, MAINTENANCE, RETIRED, or ACTIVE again). ``seq`` only
    grows."""

    seq: int
    device_id: str
    admin: Admin
    reason: str
    unix_secs: float


def orders_path(fleet_file: Path) -> Path:
    """Return the path of the orders of a fleet file."""
    return fleet_file.absolute().with_suffix(".orders.db")


class FleetOrders:
    """The orders in the file at ``path``, which need not exist.

    Every method raises :class:`FleetOrdersError` if the file cannot be read or written, is of a newer version, or has
    other content.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def give(self, device_id: str, admin: Admin, reason: str) -> None:
        """Give an order; durable when this returns."""
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO orders (device, admin, reason, unix_secs) VALUES (?, ?, ?, ?)",
                (device_id, admin.value, reason, time.time()),
            )

    def since(self, cursor: int) -> list[Order]:
        """Return the orders with ``seq > cursor``, in the order in which they were given."""
        rows = self._rows("SELECT seq, device, admin, reason, unix_secs FROM orders WHERE seq > ? ORDER BY seq", cursor)
        try:
            return [Order(seq, device, Admin(admin), reason, secs) for seq, device, admin, reason, secs in rows]
        except ValueError as error:
            raise self._unusable(str(error)) from error

    def latest(self) -> dict[str, Order]:
        """Return the last order for every device that ever had one, by device id."""
        return {order.device_id: order for order in self.since(0)}

    def note_run(self, run_id: str, records: Path) -> None:
        """Note that a run uses the fleet, with its record database."""
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (run_id, str(records.absolute()), time.time())
            )

    def last_records(self) -> Path | None:
        """Return the record database of the last run that used the fleet and whose database is still there; ``None`` if
        there is none."""
        rows = self._rows("SELECT records FROM runs ORDER BY unix_secs DESC, rowid DESC")
        return next((path for (text,) in rows if (path := Path(text)).is_file()), None)

    def _rows(self, query: str, *values: int) -> list[tuple]:  # type: ignore[type-arg]
        if not self.path.exists():
            return []
        with self._connected(self._reading_mode) as connection:
            if _is_empty(connection):
                return []
            return connection.execute(query, values).fetchall()

    @property
    def _reading_mode(self) -> str:
        """SQLite mode for reading: ``rw`` if this user may write, so that SQLite can undo what a killed writer left;
        else ``ro``."""
        return "rw" if os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK) else "ro"

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._connected("rwc") as connection:
            # From here on nobody else writes; without the COMMIT, closing undoes everything.
            connection.execute("BEGIN IMMEDIATE")
            if connection.execute("PRAGMA user_version").fetchone() == (0,):
                if not _is_empty(connection):
                    raise self._unusable("it holds something else")
                for statement in _SCHEMA:
                    connection.execute(statement)
            yield connection
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def _connected(self, mode: str) -> Iterator[sqlite3.Connection]:
        try:
            uri = f"file:{quote(str(self.path))}?mode={mode}"
            with contextlib.closing(
                sqlite3.connect(uri, uri=True, timeout=_BUSY_SECS, isolation_level=None)
            ) as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version > _VERSION:
                    raise self._unusable(f"version {version}, this fleet-tune reads up to version {_VERSION}")
                connection.execute("PRAGMA synchronous=FULL")
                yield connection
        except sqlite3.Error as error:
            raise self._unusable(str(error)) from error

    def _unusable(self, reason: str) -> FleetOrdersError:
        return FleetOrdersError(
            f"cannot use the orders of the fleet in {self.path}: {reason}",
            "make it writable, or move it away: without it every device is in use",
        )


def _is_empty(connection: sqlite3.Connection) -> bool:
    """Return true if the file has no tables: its first writer has made it, and has not filled it yet or could not."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return bool(tables == 0)
