"""The benchmark of the service's memory, with few records: all of them come through, and it says what it measured."""

from __future__ import annotations

from bench.datasets import dataset_path
from bench.runs import retune_memory
from bench.runs.retune_memory_process import played


def test_all_records_go_through_the_service() -> None:
    details = played(dataset_path(None), 200, 40, 20, 2)
    assert details["records"] >= 240
    assert details["runs"] == details["records"] // 20
    assert details["published"] >= 2
    assert details["days"] > 0
    assert details["first_bytes"] > 0
    assert details["last_bytes"] > 0
    assert retune_memory.table({"details": details}).count("\n") == 10
