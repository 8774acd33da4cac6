"""The float32 networks of the table together."""

from __future__ import annotations

from bench.latency.network_means import network_means
from bench.saved_result import SCHEMA, SavedResult


def _saved(label: str, network: str, budget: float, ratio: float) -> SavedResult:
    details = {"model": f"networks.py:{network}", "budget_secs": budget}
    result = {"ours": 1.0, "peer": ratio, "ratio": ratio, "unit": "ms", "details": details}
    return SavedResult(
        SCHEMA, "network-latency", label, "python -m bench", "0" * 40, False, "2026-11-25", 1.0, {}, {}, {}, result
    )


def test_networks_of_one_tuning_time_have_a_geometric_mean_and_a_least() -> None:
    results = [
        _saved("f32-a-60", "a", 60.0, 2.0),
        _saved("f32-b-60", "b", 60.0, 0.5),
        _saved("f32-a-600", "a", 600.0, 1.5),
        _saved("int8-a", "a", 600.0, 9.0),
    ]
    assert network_means(results).splitlines()[2:] == [
        "| 60 s | 2 | 1.00 | 2.00 | 0.50 (b) |",
        "| 600 s | 1 | 1.50 | 1.50 | 1.50 (a) |",
    ]


def test_without_such_networks_there_is_no_table() -> None:
    assert network_means([_saved("int8-a", "a", 600.0, 9.0)]) == ""
