"""The figures of the measure-cost benchmark from made-up measurements, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from bench.devices.measure_cost import BENCHMARK, compare, task_figures
from bench.devices.measure_cost_process import choose_rows, to_judge
from bench.result import BenchError


def row(number: int, ours: float, peer: float, fixed: float, stopped: str = "converged") -> dict[str, Any]:
    """A candidate that each way measured at this cost, in 1, 10 and 50 device seconds."""
    return {
        "row": number,
        "ours": {"cost_secs": ours, "device_secs": 1.0, "stopped": stopped, "confirmed": stopped == "converged"},
        "metaschedule": {"cost_secs": peer, "device_secs": 10.0},
        "fixed": {"cost_secs": fixed, "device_secs": 50.0, "runs": 500 if number else 40},
    }


MEASURED = {
    "rows": [row(0, 2.0, 2.0, 2.0, "raced"), row(1, 1.0, 1.03, 1.01), row(2, 1.01, 0.99, 1.0)],
    "chosen": {"ours": 1, "metaschedule": 2, "fixed": 2},
    "shoot_out_secs": 3.0,
    "judged": {"1": [1.0, 1.0, 1.3], "2": [1.02, 1.02, 1.02]},
}


def test_device_seconds_and_regret_by_hand() -> None:
    figures = task_figures(MEASURED)
    assert figures["device_secs"] == {"ours": 6.0, "metaschedule": 30.0, "fixed": 150.0}
    # Judged: 1.0 and 1.02.
    assert figures["regret"] == pytest.approx({"ours": 0.0, "metaschedule": 0.02, "fixed": 0.02})
    assert (figures["confirmed"], figures["shortened"]) == (2, 1)
    assert figures["stopped"] == {"raced": 1, "converged": 2}
    # The deviation of 1, 1, 1.3 is 0.3 / sqrt(3), and there are three of them.
    assert figures["judge_error"] == pytest.approx(1.2533 * 0.1)


def test_all_tasks_together() -> None:
    result = compare({"a": MEASURED, "b": {**MEASURED, "chosen": {"ours": 2, "metaschedule": 1, "fixed": 1}}})
    assert (result.ours, result.peer, result.ratio) == pytest.approx((2.0, 10.0, 5.0))
    assert result.details["mean_regret"] == pytest.approx({"ours": 0.01, "metaschedule": 0.01, "fixed": 0.01})
    assert result.details["worst_regret"]["ours"] == pytest.approx(0.02)
    table = BENCHMARK.table({"ratio": result.ratio, "details": result.details})
    assert "| all (6) | 2000.0 | 10000.0 | 50000.0 | 1.00% | 1.00% | 1.00% | ratio 5.0 |" in table


def test_all_that_some_way_found_near_its_best_are_judged() -> None:
    measured = [row(0, 1.0, 2.0, 2.0), row(1, 1.06, 1.0, 2.0), row(2, 1.06, 1.06, 1.0), row(3, 1.06, 1.06, 1.06)]
    assert to_judge(measured, {"ours": 0}) == [0, 1, 2]
    assert to_judge(measured, {"ours": 0, "fixed": 3}) == [0, 1, 2, 3]


def test_a_quarter_of_the_candidates_are_among_the_fastest() -> None:
    costs = [float(cost) for cost in range(1, 1001)]
    costs[500] = math.inf
    rows = choose_rows(costs, 60)
    assert len(set(rows)) == 60
    assert sum(at < 50 for at in rows) == 15
    assert 500 not in rows
    assert rows == choose_rows(costs, 60)
    with pytest.raises(BenchError, match="3 candidates run, not 8"):
        choose_rows([1.0, 2.0, 3.0, math.inf], 8)
