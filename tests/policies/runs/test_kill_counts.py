"""Candidates whose processes are ended from outside, in a row."""

from __future__ import annotations

from fleet_tune.base.domain import Measurement, Outcome
from fleet_tune.base.errors import BuildersLostError, DevicesLostError
from policies.runs.commands import Abort
from policies.runs.kill_counts import KillCounts, Step

KILLED = Measurement(Outcome.KILLED, detail="killed by SIGKILL")


def test_a_row_of_them_ends_the_run_and_one_that_gets_through_begins_a_new_row() -> None:
    counts = KillCounts(2)
    assert counts.add(Step.BUILT, KILLED, is_tuning=True) == []
    assert counts.add(Step.MEASURED, KILLED, is_tuning=True) == []
    counts.reset(Step.BUILT)
    assert counts.add(Step.BUILT, KILLED, is_tuning=True) == []
    [end] = counts.add(Step.BUILT, KILLED, is_tuning=True)
    assert isinstance(end, Abort)
    assert isinstance(end.error, BuildersLostError)
    [end] = counts.add(Step.MEASURED, KILLED, is_tuning=True)
    assert isinstance(end, Abort)
    assert isinstance(end.error, DevicesLostError)


def test_a_run_that_tunes_no_more_goes_on() -> None:
    counts = KillCounts(1)
    assert counts.add(Step.MEASURED, KILLED, is_tuning=False) == []
