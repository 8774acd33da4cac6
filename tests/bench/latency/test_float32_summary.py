"""The float32 networks of the table together."""

from __future__ import annotations

from bench.latency.float32_summary import float32_summary, is_float32_row
from bench.saved_result import SCHEMA, SavedResult


def _saved(label: str, network: str, budget: float, ratio: float) -> SavedResult:
    details = {"model": f"networks.py:{network}", "budget_secs": budget}
    result = {"ours": 1.0, "peer": ratio, "ratio": ratio, "unit": "ms", "details": details}
    return SavedResult(
        SCHEMA, "network-latency", label, "python -m bench", "0" * 40, False, "2026-11-25", 1.0, {}, {}, {}, result
    )


RESULTS = [
    _saved("f32-a-600", "a", 600.0, 1.5),
    _saved("f32-a-60", "a", 60.0, 2.0),
    _saved("f32-b-60", "b", 60.0, 0.5),
    _saved("int8-a", "a", 600.0, 9.0),
]


def test_each_network_has_a_row_and_each_tuning_time_a_geometric_mean() -> None:
    page = "generated/benchmarks.md#network-latency-f32"
    assert float32_summary(RESULTS).splitlines() == [
        "| ratio of a float32 network, tuned for | 60 s | 600 s |",
        "| --- | ---: | ---: |",
        f"| `a` | [2.00]({page}-a-60) | [1.50]({page}-a-600) |",
        f"| `b` | [0.50]({page}-b-60) | - |",
        "| geometric mean | 1.00 of 2 | 1.50 of 1 |",
    ]


def test_without_such_networks_there_is_no_table() -> None:
    assert [is_float32_row(saved) for saved in RESULTS] == [True, True, True, False]
    assert float32_summary(RESULTS[-1:]) == ""
