"""Recovery from faults: its table."""

from __future__ import annotations

from bench.devices.device_recovery import BENCHMARK
from bench.result import spread


def test_its_table() -> None:
    faults = {"crash": {"secs": spread([0.21]), "outcome": "run_error", "asked_secs": 3.0}}
    assert "| crash | `run_error` | 0.2 (0.2 to 0.2) | 3 |" in BENCHMARK.table({"details": {"faults": faults}})
