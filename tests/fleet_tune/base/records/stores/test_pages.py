"""Pages of records: who follows gets every row once, in order, however the rows were committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.records.stores.pages import RecentPages, pack_page, unpack_pages


def test_rows_come_back_but_those_that_are_known() -> None:
    pages = [pack_page([(3, b"c"), (4, b"d")]), pack_page([(5, b"")])]
    assert unpack_pages(pages, 3) == [(4, b"d"), (5, b"")]
    assert unpack_pages([], 3) == []


@given(
    commits=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    kept=st.integers(1, 30),
    limit=st.integers(1, 12),
    cursor=st.integers(0, 200),
    before=st.integers(0, 5),
)
def test_what_follows_a_row_is_given_or_said_to_be_gone(
    commits: list[int], kept: int, limit: int, cursor: int, before: int
) -> None:
    """``before``: rows that were in the store when it was opened."""
    recent, rows = RecentPages(kept), [(seq, b"%d" % seq) for seq in range(1, before + sum(commits) + 1)]
    at = before
    for count in commits:
        recent.add(rows[at : at + count])
        at += count
    cursor = min(cursor, len(rows))
    pages = recent.since(cursor, limit)
    if pages is None:
        assert cursor < len(rows) - kept  # the last rows are there, as many as shall be
        return
    found = unpack_pages(pages, cursor)
    assert found == rows[cursor : cursor + len(found)]
    assert len(found) >= min(1, len(rows) - cursor)
    assert len(found) < limit + max(commits)


def test_nothing_is_recent_before_the_first_commit() -> None:
    assert RecentPages(3).since(0, 9) is None
