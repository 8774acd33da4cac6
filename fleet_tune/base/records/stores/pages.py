"""Pages: committed records on their way to the processes that follow the store. A page is packed once for all
followers, and each of them gets the same bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

Row = tuple[int, bytes]
"""The ``seq`` of a record and its body."""

_ROWS = msgspec.msgpack.Decoder(list[Row])


def pack_page(rows: Sequence[Row]) -> bytes:
    """Return one page of ``rows``, which are in order of ``seq``."""
    return msgspec.msgpack.encode(rows)


def unpack_pages(pages: Iterable[bytes], cursor: int) -> list[Row]:
    """Return the rows of ``pages`` with ``seq > cursor``, in order."""
    return [row for page in pages for row in _ROWS.decode(page) if row[0] > cursor]


@dataclass(frozen=True, slots=True)
class _Page:
    first: int
    last: int
    rows: int
    packed: bytes


class RecentPages:
    """The last pages that were committed, with at least ``rows`` rows if so many were committed. Most followers ask for
    no others."""

    def __init__(self, rows: int) -> None:
        self._limit = rows
        self._rows = 0
        self._pages: deque[_Page] = deque()

    def add(self, rows: Sequence[Row]) -> None:
        """Add a page of rows that follow the last ones."""
        page = _Page(rows[0][0], rows[-1][0], len(rows), pack_page(rows))
        self._pages.append(page)
        self._rows += page.rows
        while self._rows - self._pages[0].rows >= self._limit:
            self._rows -= self._pages.popleft().rows

    def since(self, cursor: int, limit: int) -> list[bytes] | None:
        """Return the pages with the rows after ``cursor``, in order, until they have ``limit`` rows or more. The first
        page may also have rows up to ``cursor``. ``None`` if not all rows after ``cursor`` are kept here."""
        if not self._pages or cursor < self._pages[0].first - 1:
            return None
        lacking: list[_Page] = []
        for page in reversed(self._pages):  # from the newest: a follower that is close behind lacks few
            if page.last <= cursor:
                break
            lacking.append(page)
        found, rows = [], 0
        while lacking and rows < limit:
            page = lacking.pop()
            found.append(page.packed)
            rows += page.rows
        return found
