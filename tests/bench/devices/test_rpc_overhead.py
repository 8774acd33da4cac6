"""The overhead of a measurement: its table."""

from __future__ import annotations

from bench.devices.rpc_overhead import BENCHMARK
from bench.result import spread


def test_its_table() -> None:
    side = {"overhead_secs": spread([0.001, 0.002, 0.004]), "wall_secs": spread([0.25])}
    sides = dict.fromkeys(("ours", "ours, checked", "peer", "peer, linked"), side)
    text = BENCHMARK.table({"ratio": 50.0, "details": {"sides": sides}})
    assert "| fleet-tune | 2.0 (1.0 to 4.0) | 250.0 (250.0 to 250.0) |" in text
    assert text.endswith("Ratio: 50.")
