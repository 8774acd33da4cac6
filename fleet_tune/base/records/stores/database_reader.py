"""A read-only connection to a record database."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self

from fleet_tune.base.errors import RecordStoreError
from fleet_tune.base.records.stores.database import open_for_reading
from fleet_tune.base.records.stores.store_errors import translated

_NAMES_AT_ONCE = 500


class DatabaseReader:
    """Queries of a record database, which may be written at the same time. It may be used from any thread.

    Every query sees what was committed when it began. Raises :class:`RecordStoreError` if there is no record database,
    or one of a newer schema.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()
        if not path.is_file():
            raise RecordStoreError(f"no such record database: {path}", "give the path of a records.db")
        with translated(path):
            self._connection = open_for_reading(path)

    def rows(self, query: str, *values: str | int) -> list[tuple]:  # type: ignore[type-arg]
        """Return the rows of a query."""
        with self._mutex, translated(self.path):
            return self._connection.execute(query, values).fetchall()

    def rows_in(self, query: str, names: Collection[str]) -> list[tuple]:  # type: ignore[type-arg]
        """Return the rows of a query that ends in ``IN``, to which this list of values is added."""
        ordered = sorted(names)
        found = []
        for start in range(0, len(ordered), _NAMES_AT_ONCE):
            some = ordered[start : start + _NAMES_AT_ONCE]
            found += self.rows(f"{query} ({', '.join('?' * len(some))})", *some)
        return found

    def has_table(self, name: str) -> bool:
        """Return true if there is a table of this name. A store of an older version is only brought up to date by the
        next run that writes to it."""
        return bool(self.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name))

    def has_column(self, name: str) -> bool:
        """Return true if records have this column; see :meth:`has_table`."""
        return bool(self.rows("SELECT 1 FROM pragma_table_info('records') WHERE name = ?", name))

    def meta(self) -> dict[str, str]:
        """Return the properties that the store is bound to, with ``schema_version`` and ``created_unix_secs``."""
        return dict(self.rows("SELECT key, value FROM meta"))

    def close(self) -> None:
        """Close the database. May be called twice."""
        with self._mutex:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
