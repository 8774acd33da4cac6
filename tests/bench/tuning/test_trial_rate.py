"""Trials a minute: their comparison and its table."""

from __future__ import annotations

import pytest

from bench.result import BenchError
from bench.tuning.trial_rate import BENCHMARK, workload_figures


def test_trial_rate_compares_medians_and_refuses_empty_sides() -> None:
    ours = [{"valid": 9, "tasks": 1, "valid_per_minute": rate} for rate in (100.0, 300.0, 200.0)]
    peer = [{"valid": 9, "valid_per_minute": rate} for rate in (40.0, 50.0, 10.0)]
    assert workload_figures(ours, peer)["ratio"] == pytest.approx(5.0)
    with pytest.raises(BenchError, match="MetaSchedule measured no valid trial"):
        workload_figures(ours, [{"valid": 0, "valid_per_minute": 0.0}])
    with pytest.raises(BenchError, match="tasks"):
        workload_figures([{**ours[0], "tasks": 2}], peer)


def test_its_table() -> None:
    rates = {"median": 400.0, "min": 390.0, "max": 410.0, "count": 3}
    workload = {"ours": rates, "peer": rates, "ratio": 1.0, "our_runs": [{"valid_per_minute_after_first": 420.0}]}
    text = BENCHMARK.table({"details": {"workloads": {"matmul_relu": workload}}})
    assert "| `matmul_relu` | 400 (390 to 410) | 420 | 400 (390 to 410) | 1.0 |" in text
