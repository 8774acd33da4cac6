"""The figures of the false-improvement benchmark from made-up duels, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from bench.devices.false_improvement import BENCHMARK, summed, task_figures


def met(ratio: float, runs: int, *, faster: bool = False) -> dict[str, Any]:
    return {"row": 1, "faster": faster, "ratio": ratio, "error": 0.01, "runs": runs, "device_secs": 0.02 * runs}


def test_what_the_duels_of_a_task_say_together() -> None:
    figures = task_figures([met(0.9, 24, faster=True), met(1.1, 6), met(1.0, 6)])
    assert (figures["duels"], figures["false"], figures["worst_ratio"], figures["mean_runs"]) == (3, 1, 0.9, 12.0)
    assert figures["mean_device_secs"] == pytest.approx(0.24)


def test_the_rate_is_of_all_duels() -> None:
    result = summed({"a": [met(0.9, 6, faster=True), met(1.0, 6)], "b": [met(1.0, 6)] * 2})
    assert (result.ours, result.peer) == (0.25, 0.01)
    assert result.ratio == pytest.approx(0.75 / 0.99)
    assert "| `a` | 2 | 1 | 0.900 | 6.0 | 0.12 |" in BENCHMARK.table(
        {"ours": 0.25, "peer": 0.01, "details": result.details}
    )
