"""Sound parts of a store whose file is damaged. Rows that SQLite cannot read together are read one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator

from fleet_tune.base.domain import Record
from fleet_tune.base.errors import DamagedStoreError, UnreadableRecordError
from fleet_tune.base.records.sharing.shared import SharedReader
from fleet_tune.base.records.stores.origin import Effort, Origin, decode_origin

_PAGE_RECORDS = 1000
_MOST_ORIGINS = 10_000
_MOST_EMPTY = 1_000_000
"""Largest number of successive numbers without a readable record: a damaged file may name any number as the last
one."""


class DamagedReader(SharedReader):
    """Reader of a store whose file is damaged in parts: a source of
    :func:`fleet_tune.base.records.sharing.shared.copy_records`.

    ``lost``: number of records that cannot be read; ``is_damaged``: true if anything could not be read. Raises
    :class:`DamagedStoreError` if not even the number of records can be told, or if the file has no tables any more.
    """

    lost = 0
    is_damaged = False

    def origins(self) -> dict[int, Origin]:
        """See :class:`SharedReader`. Origins that cannot be read are skipped."""
        try:
            return super().origins()
        except DamagedStoreError:
            found = {}
            for number in range(1, _MOST_ORIGINS + 1):
                with contextlib.suppress(DamagedStoreError, UnreadableRecordError):
                    for (body,) in self.rows("SELECT body FROM origins WHERE id = ?", number):
                        found[number] = decode_origin(body)
            return found

    def efforts(self) -> list[tuple[Effort, Origin]]:
        """See :class:`SharedReader`. There are no efforts if they cannot be read: the tasks are tuned again."""
        try:
            return super().efforts()
        except DamagedStoreError:
            return []

    def unit_secs(self, device_id: str, device_class: str) -> float | None:
        """See :class:`SharedReader`. Return ``None`` also if it cannot be read."""
        try:
            return super().unit_secs(device_id, device_class)
        except DamagedStoreError:
            return None

    def pages(self, cursor: int = 0) -> Iterator[list[Record]]:
        """Yield the records that can be read, many at a time."""
        empty = 0  # successive numbers without a readable record
        while empty < _MOST_EMPTY:
            try:
                rows = self._rows_after(cursor, _PAGE_RECORDS)
                if not rows:
                    return
                page, cursor = self._readable(rows), rows[-1][0]
            except DamagedStoreError:
                numbers = range(cursor + 1, min(cursor + _PAGE_RECORDS, self._last()) + 1)
                if not numbers:
                    return
                page, cursor = [each for number in numbers for each in self._one(number)], numbers[-1]
            empty = 0 if page else empty + _PAGE_RECORDS
            if page:
                yield page

    def _one(self, number: int) -> list[Record]:
        try:
            return self._readable(self._record_rows("WHERE records.seq = ?", number))
        except DamagedStoreError:
            self.lost += 1
            return []

    def _last(self) -> int:
        """Return the highest number that a record may have."""
        try:
            ((last,),) = self.rows("SELECT coalesce(max(seq), 0) FROM records")
        except DamagedStoreError:
            rows = self.rows("SELECT seq FROM sqlite_sequence WHERE name = 'records'")
            last = rows[0][0] if rows else 0
        return int(last)

    def rows(self, query: str, *values: str | int) -> list[tuple]:  # type: ignore[type-arg]
        try:
            return super().rows(query, *values)
        except DamagedStoreError:
            self.is_damaged = True
            raise

    def rows_in(self, query: str, names: Collection[str]) -> list[tuple]:  # type: ignore[type-arg]
        try:
            return super().rows_in(query, names)
        except DamagedStoreError:
            return list(self._each(query, names))

    def _each(self, query: str, names: Iterable[str]) -> Iterator[tuple]:  # type: ignore[type-arg]
        for name in names:
            with contextlib.suppress(DamagedStoreError):
                yield from super().rows_in(query, (name,))
