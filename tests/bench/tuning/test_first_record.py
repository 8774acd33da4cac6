"""The first record: its table."""

from __future__ import annotations

from bench.tuning.first_record import BENCHMARK


def test_its_table() -> None:
    first = {"median": 9.04, "min": 8.0, "max": 11.0, "count": 3}
    stop = {"median": 2.0, "min": 1.5, "max": 2.5, "count": 3}
    text = BENCHMARK.table({"details": {"models": {"net": {"first_record_secs": first, "stop_secs": stop}}}})
    assert "| `net` | 9.0 (8.0 to 11.0) | 2.0 (1.5 to 2.5) |" in text
