"""Leases: epochs, late answers, and the counts of idle and leased devices."""

from __future__ import annotations

import pytest

from fleet_tune.base.latency_estimate import CallSecs
from policies.measuring import health
from policies.runs.fleet import Fleet
from policies.runs.stages.leases import Leases, Work
from policies.runs.tasks import Trial
from tests.helpers.tasks import make_candidate, make_task

TASK = make_task()


@pytest.fixture
def leases() -> Leases:
    """Two good devices, idle."""
    fleet = Fleet({"a": "board", "b": "board"}, "run")
    made = Leases(fleet)
    made.add_class("board")
    for name in ("a", "b"):
        for event in (health.Joined(), health.ProbePassed(1e-3)):
            fleet.happened(name, event, 0.0)
        made.add_device(name, "board")
        made.set_idle(made.slots[name])
    return made


def test_an_answer_under_an_old_lease_is_late(leases: Leases) -> None:
    first = leases.lease("a", Work.BATCH, 10.0, 1.0)
    assert leases.holds("a", first)
    leases.release("a", 2.0)
    assert not leases.holds("a", first)
    leases.set_idle(leases.slots["a"])
    second = leases.lease("a", Work.SHOOT_OUT, 10.0, 3.0)
    assert second == first + 1
    assert not leases.holds("a", first)
    assert not leases.holds("gone", 1)


def test_devices_and_the_candidates_on_them_are_counted(leases: Leases) -> None:
    batch = [Trial(TASK, make_candidate(TASK, number)) for number in range(3)]
    leases.lease("a", Work.BATCH, 10.0, 1.0, batch)
    assert leases.occupied("board") == (1, 1, 3)
    assert leases.any_leased
    assert leases.idle_devices("board") == ["b"]
    assert leases.remove_device("a", 2.0) == ("board", batch)
    assert leases.occupied("board") == (0, 1, 0)
    assert not leases.any_leased
    assert leases.members("board") == 1


def test_the_device_that_has_been_idle_for_the_longest_is_first(leases: Leases) -> None:
    leases.lease("a", Work.BATCH, 10.0, 1.0)
    leases.release("a", 2.0)
    leases.set_idle(leases.slots["a"])
    assert leases.first_idle("board") == "b"
    leases.set_busy(leases.slots["b"])
    assert leases.idle_devices("board") == ["a"]


def test_what_calls_take_is_shown_at_the_speed_of_the_class(leases: Leases) -> None:
    assert leases.call_secs == {}
    leases.calls_timed("board", CallSecs(6.0, 4))
    assert leases.call_secs == {}, "no seconds are known before the speed is"
    leases.restore({"board": 2.0}, {})
    assert leases.call_secs == {"board": 3.0}
    leases.calls_timed("board", CallSecs(8.0, 2))
    assert leases.call_secs == {"board": 3.0}, "it is known from more kernels"
    leases.restore({}, {"board": CallSecs(1.0, 9)})
    assert leases.call_secs == {"board": 0.5}


def test_the_shown_speed_of_a_class_stays_as_it_was_first_told(leases: Leases) -> None:
    assert leases.shown_speed("board") is None
    leases.slots["b"].vitals = {"shown_speed": 2.0}
    assert leases.shown_speed("board") == 2.0
    leases.slots["a"].vitals = {"shown_speed": 4.0}
    leases.slots["b"].vitals = {"clock_hertz": 1.0}
    assert leases.shown_speed("board") == 2.0
    assert leases.vitals.keys() == {"a", "b"}
