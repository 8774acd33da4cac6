from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.device_state import LEASE_KINDS, Admin, Connectivity, DeviceState, Health, Lease
from policies.measuring import health
from policies.measuring.health import (
    Acquitted,
    AdminChanged,
    Event,
    Joined,
    Leased,
    Lost,
    Measured,
    NotAllowedError,
    ProbationBegun,
    ProbeFailed,
    ProbePassed,
    Released,
    step,
)

NEW = DeviceState()
ONLINE, OFFLINE = Connectivity.ONLINE, Connectivity.OFFLINE


def after(*events: Event, state: DeviceState = NEW, now: float = 100.0) -> DeviceState:
    for event in events:
        state = step(state, event, now).state
    return state


GOOD = after(Joined(), ProbePassed(1e-3))
LEASED = after(Leased("run", 60.0), state=GOOD)


def test_a_device_joins_unknown_and_works_after_its_probe_kernel() -> None:
    assert NEW.word == "joining"
    joined = step(NEW, Joined("first time"), 0.0)
    assert (joined.state.connectivity, joined.state.health) == (ONLINE, Health.UNKNOWN)
    assert joined.stored
    assert "first time" in joined.reason
    assert health.needs_probe(joined.state)
    assert not health.may_work(joined.state)
    passed = step(joined.state, ProbePassed(2e-3), 0.0)
    assert passed.state.health is Health.GOOD
    assert "2 ms" in passed.reason
    assert health.may_work(passed.state)
    # The same again is no change: nothing to keep.
    assert not step(passed.state, ProbePassed(2e-3), 0.0).stored
    assert not step(passed.state, Joined(), 0.0).stored


def test_a_lease_has_a_new_epoch_and_what_is_older_is_refused() -> None:
    leased = step(GOOD, Leased("run", 60.0), 100.0).state
    assert leased.lease == Lease("run", 160.0, 1)
    assert not health.may_work(leased)
    assert leased.lease.accepts(1)
    released = step(leased, Released(1), 110.0).state
    assert released.lease == Lease(epoch=1)
    assert not released.lease.accepts(1)
    again = step(released, Leased("run", 60.0), 120.0).state
    assert again.lease.epoch == 2
    assert not again.lease.accepts(1)
    with pytest.raises(NotAllowedError, match="lease 1"):
        step(again, Released(1), 130.0)
    with pytest.raises(NotAllowedError, match="held"):
        step(again, Leased("other", 1.0), 130.0)
    with pytest.raises(NotAllowedError, match="owner"):
        step(GOOD, Leased("", 1.0), 130.0)


def test_a_lost_device_is_suspect_and_the_third_loss_quarantines_for_twice_as_long_each_time() -> None:
    back = (Joined(), ProbePassed(1e-3))
    lost = step(LEASED, Lost("connection refused", "c1"), 100.0)
    assert (lost.state.connectivity, lost.state.health, lost.state.word) == (OFFLINE, Health.SUSPECT, "lost")
    assert lost.state.lease == Lease(epoch=1)  # what it still sends is old
    assert lost.reason == "it does not answer (connection refused) (failure 1)"
    # Not answering while it is known to be gone is no further failure.
    assert not step(lost.state, Lost("still"), 101.0).stored
    assert after(Joined(), state=lost.state).health is Health.SUSPECT
    second = after(*back, Lost("again", "c2"), state=lost.state)
    assert (second.health, second.losses) == (Health.SUSPECT, ("c1", "c2"))
    third = after(*back, Lost("again"), state=second, now=200.0)
    assert (third.health, third.quarantines, third.until_unix_secs) == (Health.QUARANTINED, 1, 215.0)
    assert third.word == "quarantined"
    assert step(third, ProbationBegun(), 214.9).state == third
    probation = step(third, ProbationBegun(), 215.0).state
    assert probation.health is Health.SUSPECT
    # On probation one failure is enough, and the quarantine is twice as long.
    fourth = after(*back, Lost("again"), state=probation, now=300.0)
    assert (fourth.health, fourth.quarantines, fourth.until_unix_secs) == (Health.QUARANTINED, 2, 330.0)


def test_quarantines_grow_to_a_limit() -> None:
    assert [health.probation_secs(n) for n in range(8)] == [15, 30, 60, 120, 240, 480, 960, 960]
    assert health.probation_secs(10_000) == 960


def test_a_probe_that_fails_is_a_failure_of_the_device() -> None:
    failed = after(Joined(), ProbeFailed("illegal instruction"))
    assert (failed.connectivity, failed.health, failed.losses) == (ONLINE, Health.SUSPECT, ("",))
    assert after(*[ProbeFailed("x")] * 2, state=failed).health is Health.QUARANTINED


def test_enough_measurements_prove_a_device() -> None:
    shaky = after(Lost("x", "c1"), Joined(), ProbePassed(1e-3), state=LEASED)
    almost = step(shaky, Measured(health.PROOF_RUNS - 1), 0.0)
    assert (almost.state.losses, almost.stored) == (("c1",), False)
    proved = step(almost.state, Measured(1), 0.0)
    assert (proved.state.losses, proved.state.quarantines, proved.stored) == ((), 0, True)


def test_a_poison_candidate_is_blamed_and_not_its_devices() -> None:
    assert [health.is_poison(n) for n in range(4)] == [False, False, True, True]
    back = (Joined(), ProbePassed(1e-3))
    twice = after(Lost("x", "other"), *back, Lost("x", "poison"), *back, state=LEASED)
    quarantined = after(Lost("x", "poison"), state=twice)
    assert quarantined.health is Health.QUARANTINED
    acquitted = step(quarantined, Acquitted("poison"), 0.0)
    assert acquitted.state.losses == ("other",)
    assert (acquitted.state.health, acquitted.state.quarantines) == (Health.SUSPECT, 0)
    assert "poison" in acquitted.reason
    assert not step(quarantined, Acquitted("unheard of"), 0.0).stored
    # Losses without a candidate are nobody's.
    unnamed = after(ProbeFailed("x"), state=GOOD)
    assert step(unnamed, Acquitted(""), 0.0).state == unnamed


def test_a_candidate_is_tried_on_another_device_if_there_is_one() -> None:
    assert health.may_try((), "a", ("a", "b"))
    assert not health.may_try(("a",), "a", ("a", "b"))
    assert health.may_try(("a",), "b", ("a", "b"))
    assert health.may_try(("a",), "a", ("a",))
    assert health.may_try(("a",), "a", ())


def test_draining_ends_in_maintenance_when_the_work_is_done() -> None:
    draining = step(LEASED, AdminChanged(Admin.DRAINING, "new kernel"), 100.0)
    assert (draining.state.admin, draining.state.lease.held) == (Admin.DRAINING, True)
    assert "new kernel" in draining.reason
    assert draining.state.lease.accepts(1)  # what it runs still counts
    drained = after(Released(1), state=draining.state)
    assert drained.admin is Admin.MAINTENANCE
    assert not health.may_work(drained)
    assert after(Lost("x"), state=draining.state).admin is Admin.MAINTENANCE
    # An idle device is drained at once.
    assert after(AdminChanged(Admin.DRAINING, ""), state=GOOD).admin is Admin.MAINTENANCE
    resumed = after(AdminChanged(Admin.ACTIVE, "done"), state=drained)
    assert (resumed.admin, resumed.health) == (Admin.ACTIVE, Health.UNKNOWN)


@pytest.mark.parametrize("admin", [Admin.MAINTENANCE, Admin.RETIRED])
def test_an_order_takes_a_device_out_and_resume_brings_it_back(admin: Admin) -> None:
    out = after(AdminChanged(admin, "fan is dead"), state=GOOD)
    assert out.word == admin.value
    assert not health.may_work(out)
    assert not health.needs_probe(out)
    assert not step(out, AdminChanged(Admin.DRAINING, ""), 0.0).stored
    assert health.needs_probe(after(AdminChanged(Admin.ACTIVE, ""), state=out))


def test_resume_ends_a_quarantine_and_nothing_else_of_an_active_device() -> None:
    quarantined = after(*[ProbeFailed("x")] * 3, state=GOOD)
    resumed = after(AdminChanged(Admin.ACTIVE, "cable replaced"), state=quarantined)
    assert (resumed.health, resumed.losses, resumed.quarantines) == (Health.UNKNOWN, (), 0)
    assert not step(GOOD, AdminChanged(Admin.ACTIVE, ""), 0.0).stored


def test_a_run_begins_with_what_the_last_one_kept() -> None:
    quarantined = after(*[ProbeFailed("x")] * 3, state=LEASED)
    assert health.restored(quarantined, Admin.ACTIVE, 0.0).health is Health.QUARANTINED
    begun = health.restored(LEASED, Admin.ACTIVE, 0.0)
    assert (begun.connectivity, begun.health, begun.lease) == (OFFLINE, Health.UNKNOWN, Lease(epoch=1))
    assert health.restored(LEASED, Admin.DRAINING, 0.0).admin is Admin.MAINTENANCE


def test_only_what_can_come_back_by_itself_is_waited_for_without_end() -> None:
    assert health.may_return(GOOD)
    assert not health.may_return(after(Lost("x"), state=GOOD))
    assert health.may_return(after(*[ProbeFailed("x")] * 3, state=GOOD))
    assert not health.may_return(after(AdminChanged(Admin.RETIRED, ""), state=GOOD))


# Any sequence of events --------------------------------------------------------------------------------------------

_ids = st.sampled_from(["", "a", "b"])
_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Joined, st.sampled_from(["", "again"])),
    st.builds(ProbePassed, st.floats(1e-6, 1.0)),
    st.builds(ProbeFailed, st.just("fails")),
    st.builds(Lost, st.just("gone"), _ids),
    st.builds(Measured, st.integers(1, 30)),
    st.builds(Acquitted, _ids),
    st.just(ProbationBegun()),
    st.builds(Leased, st.just("run"), st.floats(0.1, 100.0)),
    st.builds(Released, st.integers(0, 10)),
    st.builds(AdminChanged, st.sampled_from(Admin), st.just("because")),
)
_histories = st.lists(st.tuples(_events, st.floats(0.0, 40.0)), max_size=60)


@given(_histories)
def test_whatever_happens_the_rules_hold(history: list[tuple[Event, float]]) -> None:
    state, now, highest = NEW, 0.0, 0
    for event, passed in history:
        now += passed
        before = state
        try:
            change = step(state, event, now)
        except NotAllowedError:
            if isinstance(event, Leased):
                assert not health.may_work(before)
            else:
                assert isinstance(event, Released)
                assert not before.lease.accepts(event.epoch)
            continue
        state = change.state
        assert change.reason
        # Epochs only grow, and only by a new lease.
        assert state.lease.epoch == before.lease.epoch + isinstance(event, Leased)
        # A lease is given only to what may work: never to a quarantined, unknown, suspect, offline or inactive device.
        if isinstance(event, Leased):
            assert before.health is Health.GOOD
            assert before.connectivity is ONLINE
            assert before.admin is Admin.ACTIVE
        # What is lost or quarantined holds no lease: its results are refused.
        if state.connectivity is OFFLINE:
            assert not state.lease.held
        assert (state.until_unix_secs > 0) == (state.health is Health.QUARANTINED)
        # Quarantined devices leave it by probation, by an acquittal or by a person's word alone.
        if before.health is Health.QUARANTINED and state.health is not Health.QUARANTINED:
            assert isinstance(event, ProbationBegun | Acquitted | AdminChanged)
            if isinstance(event, ProbationBegun):
                assert now >= before.until_unix_secs
        # Good comes of the probe alone.
        if state.health is Health.GOOD and before.health is not Health.GOOD:
            assert isinstance(event, ProbePassed)
        # Every change of the fields that people see is kept.
        if replace(state, good_runs=0) != replace(before, good_runs=0):
            assert change.stored
        assert state.admin is not Admin.DRAINING or state.lease.held
        highest = max(highest, state.lease.epoch)
    assert state.lease.epoch == highest


def test_the_stored_kinds_of_events_stay_what_they_are() -> None:
    assert [each.kind for each in get_args(Event)] == [
        "joined",
        "probe_passed",
        "probe_failed",
        "lost",
        "interrupted",
        "measured",
        "acquitted",
        "probation_begun",
        "leased",
        "released",
        "ordered",
    ]
    assert {"leased", "released"} == set(LEASE_KINDS)
