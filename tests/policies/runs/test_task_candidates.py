"""The candidates of a task, from one set to the next."""

from __future__ import annotations

from policies.runs.task_candidates import TaskCandidates


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
