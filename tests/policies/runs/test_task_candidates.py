"""The candidates of a task, from one set to the next."""

from __future__ import annotations

from policies.runs.planned_task import PlannedTask
from policies.runs.task_candidates import TaskCandidates
from policies.runs.tasks import TaskTrials
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate, make_task


def test_a_candidate_is_known_from_its_proposal_on() -> None:
    ids = TaskCandidates()
    ids.begin("a")
    assert ids.knows("a")
    ids.record("a")
    ids.end("a")
    assert ids.knows("a")
    assert not ids.under_way
    assert not ids.knows("b")


def test_one_that_was_given_up_may_have_been_stored_after_all() -> None:
    ids = TaskCandidates()
    ids.begin("a")
    ids.built("a")
    ids.give_up("a")
    assert (ids.under_way, ids.artifacts, ids.given_up) == (set(), set(), {"a"})
    ids.record("a")
    ids.end("a")
    assert (ids.given_up, ids.recorded) == (set(), {"a"})


def test_dropped_candidates_leave_no_artifact() -> None:
    ids = TaskCandidates()
    for name in ("b", "a", "c"):
        ids.begin(name)
        ids.built(name)
    assert ids.drop_artifacts({"c"}) == ("c",)
    assert ids.drop(["a"]) == ("a", "b")
    assert ids.under_way == {"b", "c"}


def test_a_candidate_that_waits_for_its_measurement_keeps_its_artifact_whatever_other_runs_say_of_it() -> None:
    """Its record came from a store that runs share."""
    task = TaskTrials(PlannedTask(make_task(), ("rule",), 0.0))
    best, slow = (make_candidate(task.task.id, number) for number in (1, 2))
    task.candidates.begin(slow.id)
    task.candidates.built(slow.id)
    task.learn(make_record(best, ok(1.0, 1.0)))
    assert task.learn(make_record(slow, ok(9.0, 9.0))) == ()
    assert task.candidates.artifacts == {slow.id}
    task.candidates.end(slow.id)
    assert task.learn(make_record(slow, ok(9.0, 9.0)), is_ours=True) == (slow.id,)
