from __future__ import annotations

import pytest

from policies.runs.times.time_budget import TimeBudget
from policies.runs.times.timers import Timers


def test_a_budget_counts_from_when_it_begins_and_shoot_outs_have_a_part_of_it() -> None:
    timers = Timers()
    budget = TimeBudget(100.0, timers)
    assert (budget.ends_secs(7.0), budget.ends_secs(50.0)) == (107.0, 150.0)
    assert not budget.is_over(1e9)
    assert timers.next_secs is None
    budget.begin(50.0, tasks=2)
    budget.begin(60.0, tasks=9)  # it has begun
    assert budget.ends_secs(120.0) == 150.0
    tuning_ends = 148.0  # a second for each task
    assert [budget.tuning_is_over(at) for at in (tuning_ends - 1e-6, tuning_ends, 150.0)] == [False, True, True]
    assert [budget.is_over(at) for at in (tuning_ends, 150.0 - 1e-6, 150.0)] == [False, False, True]
    # Looked at when a part of it is used up, and exactly then.
    assert timers.next_secs == tuning_ends
    assert len(timers.due(tuning_ends)) == 1
    assert timers.next_secs == 150.0


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_without_a_budget_is_never_over(begun: bool) -> None:
    timers = Timers()
    budget = TimeBudget(None, timers)
    if begun:
        budget.begin(0.0, tasks=3)
    assert budget.ends_secs(5.0) is None
    assert not budget.tuning_is_over(1e9)
    assert not budget.is_over(1e9)
    assert timers.next_secs is None
