"""Pages: committed records on their way to those who follow the store. A page is packed once, however many follow: to
each of them it is a run of bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

Row = tuple[int, bytes]
"""The ``seq`` of a record and its body."""

_ROWS = msgspec.msgpack.Decoder(list[Row])


def pack_page(rows: Sequence[Row]) -> bytes:
    """One page of ``rows`` in order of ``seq``."""
    return msgspec.msgpack.encode(rows)


def unpack_pages(pages: Iterable[bytes], cursor: int) -> list[Row]:
    """The rows of ``pages`` with ``seq > cursor``, in order."""
    return [row for page in pages for row in _ROWS.decode(page) if row[0] > cursor]


@dataclass(frozen=True, slots=True)
class _Page:
    first: int
    last: int
    rows: int
    packed: bytes


class RecentPages:
    """The last pages that were committed, of at least ``rows`` rows where so many were: most who follow ask for no
    others."""

    def __init__(self, rows: int) -> None:
        self._limit = rows
        self._rows = 0
        self._pages: deque[_Page] = deque()

    def add(self, rows: Sequence[Row]) -> None:
        """Rows that follow those before."""
        page = _Page(rows[0][0], rows[-1][0], len(rows), pack_page(rows))
        self._pages.append(page)
        self._rows += page.rows
        while self._rows - self._pages[0].rows >= self._limit:
            self._rows -= self._pages.popleft().rows

    def since(self, cursor: int, limit: int) -> list[bytes] | None:
        """Pages with all rows of ``seq > cursor`` up to some row, and perhaps a few before; no page more once there are
        ``limit`` rows. None where what follows ``cursor`` is not here any more."""
        if not self._pages or cursor < self._pages[0].first - 1:
            return None
        lacking: list[_Page] = []
        for page in reversed(self._pages):  # from the right: those who follow closely lack few
            if page.last <= cursor:
                break
            lacking.append(page)
        found, rows = [], 0
        while lacking and rows < limit:
            page = lacking.pop()
            found.append(page.packed)
            rows += page.rows
        return found
