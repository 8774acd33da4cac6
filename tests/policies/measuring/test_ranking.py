"""The ranking of a task's candidates by its records: the last record of each counts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.domain import Comparison, Outcome, Record
from policies.measuring.duel import STOPPED
from policies.measuring.ranking import Ranking
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate


def record(number: int, secs: float | None, *, revision: int = 0, verified: bool = True, error: float = 0.0) -> Record:
    ran = None if secs is None else replace(ok(*(secs,) * 4, verified=verified), speed_error=error)
    measured = ran or failed(Outcome.RUN_ERROR)
    return make_record(make_candidate("task", number), measured, revision=revision)


def ranking(*records: Record) -> Ranking:
    made = Ranking()
    for each in records:
        made.add(each)
    return made


def best_number(made: Ranking) -> int | None:
    return None if made.best is None else made.best.decisions[0]


def test_the_best_is_the_fastest_that_is_verified() -> None:
    assert best_number(Ranking()) is None
    assert Ranking().best_secs == math.inf
    made = ranking(record(1, 2.0), record(2, 1.0, verified=False), record(3, None), record(4, 1.5), record(5, 1.6))
    assert (best_number(made), made.best_secs) == (4, 1.5)


def test_a_revision_takes_the_place_of_the_trial() -> None:
    made = ranking(record(1, 1.0), record(2, 1.1), record(1, 1.2, revision=1))
    assert (best_number(made), made.best_secs) == (2, 1.1)
    made.add(record(2, 1.3, revision=1))
    assert (best_number(made), made.best_secs) == (1, 1.2)
    made.add(record(2, 1.15, revision=2))
    assert (best_number(made), made.best_secs) == (2, 1.15)
    # The order of the stream does not matter: what is older says nothing any more.
    made.add(record(2, 0.5, revision=1))
    made.add(record(2, 0.5))
    assert made.best_secs == 1.15
    assert [made.next_revision(record(number, 1.0).candidate.id) for number in (1, 2, 3)] == [2, 3, 1]


def test_an_incumbent_that_fails_when_it_is_measured_again_is_none() -> None:
    made = ranking(record(1, 1.0), record(2, 1.1), record(1, None, revision=1))
    assert best_number(made) == 2


def test_an_uncertain_cost_weighs_less_and_is_never_worth_nothing() -> None:
    # 0.98 and 10 % are 1.078, 1.0 and 2 % are 1.02.
    made = ranking(record(1, 0.98, error=0.1), record(2, 1.0, error=0.02))
    assert (best_number(made), made.best_secs) == (2, 1.0)
    # Which of them is faster is for the shoot-out to say.
    assert [each.decisions[0] for each in made.finalists()] == [2, 1]
    made.add(record(2, None, revision=1))
    assert best_number(made) == 1
    # The only one there is, however uncertain.
    assert best_number(ranking(record(3, 1.0, error=5.0))) == 3


def met(number: int, secs: float, against: int, ratio: float, *, faster: bool, revision: int = 0) -> Record:
    """The record of a candidate that met the one of another number, whose rank is its number."""
    rival = make_candidate("task", against).id
    comparison = Comparison(rival, float(against), ratio, 0.01, 6, faster)
    measured = replace(ok(*(secs,) * 4), comparison=comparison)
    return make_record(make_candidate("task", number), measured, revision=revision)


def test_who_met_the_incumbent_takes_its_place_only_by_a_clear_case() -> None:
    made = ranking(record(2, 2.0), met(3, 1.9, 2, 0.99, faster=False))
    assert (best_number(made), made.best_secs) == (2, 2.0)
    # Its own time is no better than that of the incumbent, which another moment gave.
    made.add(met(4, 2.1, 2, 0.9, faster=True))
    assert (best_number(made), made.best_secs) == (4, 2.1)
    assert made.incumbent.rank_secs == 1.8
    # Where it is found to be wrong, the one that it had beaten comes next, and then those that were no faster.
    made.add(record(4, None, revision=1))
    assert best_number(made) == 2
    made.add(record(2, None, revision=1))
    assert best_number(made) == 3


def test_those_who_met_in_a_final_round_do_not_meet_again() -> None:
    made = ranking(record(2, 2.0), record(3, 2.05, verified=False))
    assert [each.decisions[0] for each in made.finalists()] == [2, 3]
    made.add(met(3, 2.05, 2, 1.02, faster=False, revision=1))
    assert made.finalists() == ()


def test_a_duel_without_time_is_not_held_again() -> None:
    made = ranking(record(2, 2.0), record(3, 2.05, verified=False))
    undecided = record(3, 2.05, revision=1)
    made.add(replace(undecided, measurement=replace(undecided.measurement, stopped=STOPPED)))
    assert made.finalists() == ()


def test_what_was_verified_once_stays_so_until_it_fails() -> None:
    made = ranking(record(1, 1.0), record(2, 1.1), record(1, 1.05, revision=1, verified=False))
    assert (best_number(made), made.best_secs) == (1, 1.05)
    made.add(record(1, None, revision=2))
    made.add(record(1, 1.0, revision=3, verified=False))
    assert best_number(made) == 2


def test_no_second_shoot_out_between_the_same() -> None:
    made = ranking(record(1, 1.0), record(2, 1.001))
    assert len(made.finalists()) == 2
    made.add(record(1, 1.002, revision=1))
    assert len(made.finalists()) == 2
    made.add(record(2, 1.003, revision=1))
    assert made.finalists() == ()
    made.add(record(3, 1.001))
    assert len(made.finalists()) == 3


def test_who_has_no_room_beside_the_incumbent_is_no_reason_to_meet_again() -> None:
    # By its duel the incumbent ranks first, by its own time last: it takes the place of the fifth of the others.
    made = ranking(
        record(10, 10.0),
        met(11, 10.9, 10, 0.9, faster=True, revision=1),
        *(met(number, 10.0 + number / 1000, 10, 1.0, faster=False, revision=1) for number in range(1, 4)),
    )
    assert best_number(made) == 11
    assert made.finalists() == ()
    made.add(record(20, 10.5))
    assert made.finalists() == ()
    made.add(record(21, 9.99))
    assert [each.decisions[0] for each in made.finalists()] == [11, 21, 10, 1, 2]


@pytest.mark.parametrize(("number", "near"), [(1, True), (2, True), (3, False), (9, True)])
def test_who_may_still_be_a_finalist(number: int, near: bool) -> None:
    made = ranking(record(1, 1.0), record(2, 1.14), record(3, 1.16))
    assert made.near_best(record(number, 1.0).candidate.id) is near


@given(
    st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), st.floats(0.1, 9.0)), st.integers(0, 2), st.booleans()))
)
def test_the_best_is_always_what_the_last_words_say(drawn: list[tuple[int, float | None, int, bool]]) -> None:
    made, last, revisions, verified_ones = Ranking(), dict[int, Record](), dict[int, int](), set[int]()
    for number, secs, revision, verified in drawn:
        each = record(number, secs, revision=revision, verified=verified)
        made.add(each)
        if revision >= revisions.get(number, 0):
            revisions[number], last[number] = revision, each
            if secs is None:
                verified_ones.discard(number)
            elif verified:
                verified_ones.add(number)
    costs = [each.measurement.cost_secs for number, each in last.items() if number in verified_ones]
    assert made.best_secs == min(costs, default=math.inf)


def test_where_nothing_was_verified_the_fastest_are_checked_however_far_apart() -> None:
    made = ranking(*(record(number, float(number), verified=False) for number in range(1, 8)))
    assert best_number(made) is None
    assert [each.decisions[0] for each in made.finalists()] == [1, 2, 3, 4, 5]
    alone = ranking(record(3, 3.0, verified=False))
    assert [each.decisions[0] for each in alone.finalists()] == [3]
