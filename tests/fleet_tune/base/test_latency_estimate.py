"""The estimated latency of a network by hand."""

from __future__ import annotations

import math

import pytest

from fleet_tune.base.latency_estimate import estimated_secs

INF = math.inf


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([(2, 90.0, 3.0), (1, 20.0, 0.5)], 6.5),
        ([(2, 95.0, 3.0), (1, 10.0, INF)], 6.0),  # 10 of 200 operations are a twentieth
        ([(2, 95.0, 3.0), (1, 10.1, INF)], INF),
        ([(2, 95.0, 3.0), (1, 0.0, INF)], INF),  # it moves data: nobody knows how much
        ([(2, 0.0, 3.0), (1, 0.0, 1.0)], 7.0),
        ([(1, 10.0, INF)], INF),
        ([], INF),
    ],
)
def test_small_tasks_without_a_result_are_left_out(tasks: list[tuple[float, float, float]], expected: float) -> None:
    assert estimated_secs(tasks) == pytest.approx(expected)
