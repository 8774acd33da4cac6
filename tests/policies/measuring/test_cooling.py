"""How long a hot device rests."""

from __future__ import annotations

from policies.measuring.cooling import rest_secs


def test_rests_grow_and_end_where_they_do_not_help() -> None:
    assert [rest_secs(batches) for batches in range(6)] == [0.0, 10.0, 20.0, 40.0, 0.0, 0.0]
