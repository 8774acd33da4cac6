"""What people see of a task's best while a run goes on."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.domain import Comparison, Record
from policies.runs.planned_task import PlannedTask
from policies.runs.tasks import TaskTrials
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate, make_task

TASK = make_task()


def trials() -> TaskTrials:
    return TaskTrials(PlannedTask(TASK, ("rule",), 0.0, 1.0, 0))


def test_no_seconds_are_known_before_the_speed_of_the_device_is() -> None:
    task = trials()
    task.learn(make_record(make_candidate(TASK.id, 1), ok(3.0, 3.0)))
    assert task.progress(None).best_secs == math.inf
    assert task.progress(1.5).best_secs == 2.0


def test_what_has_won_a_duel_is_shown_by_the_duel() -> None:
    """Its own cost was measured at another moment, in another place of the memory."""
    task = trials()
    first = make_record(make_candidate(TASK.id, 1), ok(2.0, 2.0))
    duel = Comparison(first.candidate.id, first.measurement.rank_secs, 0.9, 0.01, 6, True)
    task.learn(first)
    task.learn(make_record(make_candidate(TASK.id, 2), replace(ok(2.2, 2.2), comparison=duel)))
    assert task.best_secs == 2.2
    assert task.progress().best_secs == 0.9 * 2.0


@given(st.lists(st.tuples(st.floats(0.1, 9.0), st.floats(0.0, 0.2), st.none() | st.floats(0.5, 1.5)), max_size=20))
def test_the_best_only_goes_down(drawn: list[tuple[float, float, float | None]]) -> None:
    """As trials come in: each with its error, some after a duel with the incumbent of then."""
    task, shown = trials(), math.inf
    for number, (secs, error, ratio) in enumerate(drawn):
        task.learn(_trial(task, number, secs, error, ratio))
        now = task.progress(1.25).best_secs
        assert now <= shown
        shown = now


def _trial(task: TaskTrials, number: int, secs: float, error: float, ratio: float | None) -> Record:
    incumbent, measured = task.ranking.incumbent, replace(ok(secs, secs), speed_error=error)
    if ratio is not None and incumbent.candidate_id:
        duel = Comparison(incumbent.candidate_id, incumbent.rank_secs, ratio, 0.01, 6, ratio < 0.95)
        measured = replace(measured, comparison=duel)
    return make_record(make_candidate(TASK.id, number), measured)
