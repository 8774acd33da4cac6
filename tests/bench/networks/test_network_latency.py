"""The latency of a network: its ratio and its table."""

from __future__ import annotations

import json

import pytest

from bench.networks.network_latency import BENCHMARK, latency_result


def test_latency_ratio_is_above_one_when_we_are_faster() -> None:
    medians = {"ours": 0.010, "eager": 0.030, "compile": 0.020, "ort": 0.005}
    result = latency_result("m", medians, {}, {})
    assert (result.ours, result.peer, result.unit) == (10.0, 5.0, "ms")
    assert result.ratio == pytest.approx(0.5), "against the fastest"
    assert result.details["ratios"] == pytest.approx({"eager": 3.0, "compile": 2.0, "ort": 0.5})


def test_its_table() -> None:
    times = {"median": 0.0125, "min": 0.012, "max": 0.02, "count": 3}
    result = latency_result(
        "net",
        {"ours": 0.0125, "eager": 0.025, "compile": 0.02, "ort": 0.01},
        {"budget_secs": 300.0},
        {side: {"secs": times, "relative_error": 1e-6} for side in ("ours", "eager", "compile", "ort")},
    )
    text = BENCHMARK.table(json.loads(result.to_json()))
    assert "| PyTorch eager | 12.50 (12.00 to 20.00) | 2.00 | 1.0e-06 |" in text
