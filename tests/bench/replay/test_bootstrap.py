"""Intervals over tasks, by hand."""

from __future__ import annotations

import pytest

from bench.replay.bootstrap import Interval, over_tasks, relative


def test_the_geometric_mean_of_two_tasks_and_all_that_can_be_drawn_of_them() -> None:
    found = over_tasks([2.0, 8.0])
    # Of two tasks a resample has 2 and 2, 2 and 8 (twice as often), or 8 and 8: a quarter of them are at either end.
    assert (found.mean, found.low, found.high) == (pytest.approx(4.0), pytest.approx(2.0), pytest.approx(8.0))


def test_one_task_and_equal_tasks_leave_nothing_open() -> None:
    assert over_tasks([5.0]) == Interval(*[pytest.approx(5.0)] * 3)
    assert over_tasks([3.0] * 6) == Interval(*[pytest.approx(3.0)] * 3)


def test_a_comparison_is_paired_by_task() -> None:
    slow, fast = {"a": 20.0, "b": 200.0}, {"b": 100.0, "a": 10.0}
    assert relative(slow, fast) == Interval(*[pytest.approx(2.0)] * 3)
    assert relative(fast, slow).mean == pytest.approx(0.5)
