"""The time of a batch, and its comparison."""

from __future__ import annotations

import pytest

from bench.result import BenchError
from bench.search.search_process import propose_once
from bench.search.search_time import BENCHMARK, pair_figures
from fleet_tune.base.task_data import TaskData


def test_search_time_compares_medians(data: TaskData) -> None:
    ours = propose_once(data, 100, 0, "fleet")
    assert ours["candidates"] == 64
    with pytest.raises(BenchError, match="not 1000"):
        propose_once(data, 1000, 0, "fleet")
    mine = [{**ours, "secs": secs, "cpu_secs": 0.1} for secs in (0.1, 0.3, 0.2)]
    peer = [{"secs": 4.0, "cpu_secs": 2.0, "candidates": 64, "train_secs": 1.0, "scored_by_model": True}]
    compared = pair_figures(mine, peer)
    assert compared["ratio"] == pytest.approx(20.0)
    assert compared["cpu_ratio"] == pytest.approx(20.0)
    with pytest.raises(BenchError, match="empty"):
        pair_figures(mine, [{**peer[0], "candidates": 0}])


def test_its_table() -> None:
    pair = pair_figures(
        [{"secs": 0.05, "cpu_secs": 0.05, "candidates": 64, "observe_secs": 0.001, "train_secs": 0.07}],
        [{"secs": 5.0, "cpu_secs": 5.0, "candidates": 64, "train_secs": 0.7, "scored_by_model": True}],
    )
    text = BENCHMARK.table({"details": {"pairs": [{"task": "conv", "records": 64, **pair}]}})
    assert "| `conv`, 64 records | 50 (50 to 50) | 5000 (5000 to 5000) | 100 | 70 | 700 |" in text
