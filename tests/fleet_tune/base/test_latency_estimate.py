"""The estimated latency of a network by hand."""

from __future__ import annotations

import math

import pytest

from fleet_tune.base.latency_estimate import CallSecs, estimated_secs

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


def test_every_call_takes_longer_in_the_network() -> None:
    tasks = [(2, 95.0, 3.0), (1, 10.0, INF)]
    assert estimated_secs(tasks, 0.25) == 6.75
    assert estimated_secs([], 0.25) == INF


@pytest.mark.parametrize("text", ["", "1.0", "1.0 of", "x of 2", "nan of 2", "-1.0 of 2", "inf of 2"])
def test_what_calls_take_is_read_as_it_was_written(text: str) -> None:
    assert CallSecs.decoded(CallSecs(1.5e-6, 12).encoded()) == CallSecs(1.5e-6, 12)
    assert CallSecs.decoded(text) is None
