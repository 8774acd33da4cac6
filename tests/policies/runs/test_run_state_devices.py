"""Runs in virtual time whose devices fail, hang, leave and come: who is blamed, what is measured again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fleet_tune.base.device_state import Admin, DeviceState, Health
from fleet_tune.base.domain import Limits, Outcome
from fleet_tune.base.errors import DevicesLostError
from policies.measuring import health
from policies.runs import events as ev
from policies.runs.plan import InFlightLimits
from policies.runs.unchecked_tasks import UncheckedTasks
from tests.helpers.run_world import World, played
from tests.helpers.world_devices import Device, candidate_of, order, task_of

ORIN = task_of("orin")


def test_an_outage_costs_its_time_and_no_record() -> None:
    world = played({"server": Device("server", outages=((2.0, 40.0),))})
    assert world.outcomes() == {Outcome.OK: 60}
    assert world.now > 40.0
    assert world.kinds("server")[:3] == ["joined", "probe_passed", "lost"]
    assert world.kinds("server")[-3:] == ["joined", "probe_passed", "measured"]
    assert world.state.fleet["server"].losses == ()


def test_a_hot_device_rests_and_one_that_is_always_hot_goes_on() -> None:
    cool = played({"only": Device("orin")})
    warm = played({"only": Device("orin", hot=((0.0, 3.0),))})
    always = played({"only": Device("orin", hot=((0.0, 1e9),))})
    for world in (cool, warm, always):
        assert world.outcomes() == {Outcome.OK: 60}
    assert 10.0 <= warm.now - cool.now < 30.0
    assert 70.0 <= always.now - cool.now < 90.0
    assert always.kinds("only") == cool.kinds("only")  # it is as trusted as before


def test_another_device_of_its_class_goes_on_while_a_hot_one_rests() -> None:
    world = played({"hot": Device("orin", hot=((0.0, 1e9),)), "cool": Device("orin")})
    assert world.outcomes() == {Outcome.OK: 60}
    assert world.now < 30.0
    assert len(world.measured_under["hot"]) < len(world.measured_under["cool"])


def test_a_device_that_keeps_going_away_is_quarantined_for_longer_and_longer() -> None:
    # It answers for two seconds out of every three.
    outages = tuple((3.0 * k + 2.0, 3.0 * k + 3.0) for k in range(60))
    world = played({"a": Device("orin", outages=outages), "b": Device("orin", secs=0.5)}, supply=400)
    assert world.outcomes() == {Outcome.OK: 400}  # no candidate is blamed for it
    quarantines = [e for e in world.events if e.device_id == "a" and "quarantined for" in e.reason]
    lengths = [e.state.until_unix_secs - e.unix_secs for e in quarantines]
    assert len(lengths) >= 2
    assert lengths == pytest.approx([health.probation_secs(at) for at in range(len(lengths))])


def test_a_poison_candidate_is_tried_on_two_devices_and_blamed() -> None:
    world = played({"a": Device("orin", poison=frozenset({5})), "b": Device("orin", poison=frozenset({5}))})
    assert world.outcomes() == {Outcome.OK: 59, Outcome.RUN_ERROR: 1}
    [record] = [each for each in world.trials() if each.measurement.outcome is Outcome.RUN_ERROR]
    assert record.candidate == candidate_of(ORIN, 5)
    assert record.device_id == ""
    assert record.measurement.detail.startswith("poison: its device was lost 2 times (")
    assert {"a", "b"} <= set(record.measurement.detail.partition("(")[2].partition(")")[0].split(", "))
    for name in ("a", "b"):
        assert world.kinds(name).count("lost") == 1
        assert "acquitted" in world.kinds(name)
        assert world.state.fleet[name].losses == ()


def test_a_process_that_the_run_ended_for_its_silence_is_no_candidates_fault() -> None:
    world = played({"only": Device("server", endings=2)}, supply=1)
    assert len(world.measured_under["only"]) == 3  # the first two, of one candidate, were lost
    assert world.outcomes() == {Outcome.OK: 1}
    assert world.kinds("only").count("interrupted") == 2
    assert "lost" not in world.kinds("only")


def test_a_candidate_whose_session_is_always_killed_is_left_out_and_neither_it_nor_its_device_is_blamed() -> None:
    world = played({"only": Device("orin", killed=frozenset({5}))})
    assert world.outcomes() == {Outcome.OK: 59}
    assert world.state.tasks[ORIN.id].candidates.given_up == {candidate_of(ORIN, 5).id}
    assert world.runs[candidate_of(ORIN, 5).id] == 3
    assert world.kinds("only") == ["joined", "probe_passed"]
    [told] = [each.text for each in world.state.progress(world.now).notices]
    assert told == (
        "a candidate of matmul on orin is skipped: the process that measured it was ended from outside 3 times: on "
        "device only"
    )


def test_what_ends_the_process_that_owns_a_device_again_and_again_is_found_and_left_out() -> None:
    world = played({"only": Device("orin", ends_owner=frozenset({5}))})
    assert world.outcomes() == {Outcome.OK: 59}
    assert world.state.tasks[ORIN.id].candidates.given_up == {candidate_of(ORIN, 5).id}
    assert world.kinds("only").count("interrupted") == 3
    assert "lost" not in world.kinds("only")
    assert world.state.fleet["only"].losses == ()


def test_a_run_whose_sessions_are_all_killed_ends_with_what_is_wrong() -> None:
    world = played({"only": Device("orin", killed=frozenset(range(60)))})
    assert isinstance(world.error, DevicesLostError)
    assert "5 candidates in a row could not be measured: the process that measured it was ended from outside 3" in str(
        world.error
    )
    assert world.outcomes() == {}


def test_a_device_whose_process_is_always_ended_rests_for_longer_and_longer() -> None:
    world = played({"bad": Device("orin", ends_owner=frozenset(range(60))), "good": Device("orin", secs=2.0)})
    assert len(world.trials()) + len(world.state.tasks[ORIN.id].candidates.given_up) == 60
    assert len(world.trials()) >= 50
    kinds = world.kinds("bad")
    assert kinds.count("interrupted") == 3
    assert kinds.count("lost") >= 3
    assert world.state.fleet["good"].losses == ()


def test_poison_on_the_only_device_is_blamed_too() -> None:
    world = played({"only": Device("server", poison=frozenset({3, 20, 41}))})
    assert world.outcomes() == {Outcome.OK: 57, Outcome.RUN_ERROR: 3}
    # Six losses, none of them its fault.
    assert world.state.fleet["only"].quarantines == 0


def test_a_candidate_that_is_blamed_although_its_record_is_there_holds_up_nobody() -> None:
    # Its process ended when it had stored it; before that was known it ran again, and lost its device twice.
    outages = ((4.3, 5.3), (9.7, 10.7), (25.2, 26.2), (30.2, 31.2), (36.2, 37.2))
    device = Device("orin", secs=1.0, dies_at=(7.2, 21.5, 31.4), outages=outages)
    world = played({"a": device}, supply=6, recorder_secs=3.0, seed=119, patience_secs=500.0)
    assert len(world.trials()) == 6


def test_a_lost_device_is_not_held_against_the_candidate_that_it_ran() -> None:
    world = played({"flaky": Device("orin", outages=((1.0, 1e6),)), "steady": Device("orin")})
    assert world.outcomes() == {Outcome.OK: 60}
    assert world.state.fleet["flaky"].word == "lost"


def test_a_probe_that_fails_keeps_the_work_away() -> None:
    broken = Device("orin", probe_fails=((0.0, 50.0),))
    world = played({"broken": broken, "fine": Device("orin", secs=0.5)}, supply=400)
    assert world.kinds("broken").count("probe_failed") >= 3
    first_lease = next(e for e in world.events if e.device_id == "broken" and e.kind == "leased")
    assert first_lease.unix_secs >= 50.0


def test_a_process_that_hangs_is_restarted_and_its_batch_measured_again_one_by_one() -> None:
    world = played({"only": Device("server", hangs_at=(1.0,))})
    assert world.restarts["only"] == 1
    assert world.outcomes() == {Outcome.OK: 60}
    assert world.now < 120.0  # of a lease of a quarter of an hour
    assert any("came late" in line for line in world.lines) == (world.now > 100.0)


def test_a_late_answer_changes_nothing() -> None:
    world = played({"only": Device("server", hangs_at=(1.0,))}, supply=1500)
    assert any("came late" in line for line in world.lines)
    assert world.outcomes() == {Outcome.OK: 1500}


def test_what_was_stored_before_the_process_ended_is_not_measured_again() -> None:
    deaths = tuple(float(at) for at in range(1, 40, 4))
    world = played({"only": Device("server", dies_at=deaths)}, supply=300)
    assert world.outcomes() == {Outcome.OK: 300}
    assert max(world.runs.values()) <= 3


def test_a_device_is_drained_while_the_run_goes_on_and_comes_back() -> None:
    script = {10.0: order("a", Admin.DRAINING), 30.0: order("a", Admin.ACTIVE)}
    devices = {"a": Device("orin", secs=0.3), "b": Device("orin", secs=0.3)}
    world = played(devices, supply=400, script=script)
    leased = [e.unix_secs for e in world.events if e.device_id == "a" and e.kind == "leased"]
    assert any(at < 10.0 for at in leased)
    assert not any(10.0 <= at < 30.0 for at in leased)
    assert any(at >= 30.0 for at in leased)
    assert "maintenance" in [e.state.word for e in world.events if e.device_id == "a"]
    assert world.state.fleet["a"].word == "good"


def test_a_retired_device_gets_nothing_more() -> None:
    world = played({"a": Device("orin"), "b": Device("orin")}, script={0.0: order("a", Admin.RETIRED)})
    assert {record.device_id for record in world.trials()} == {"b"}


def test_a_device_is_asked_for_its_probe_every_now_and_then_also_while_it_has_nothing_to_do() -> None:
    busy = played({"a": Device("orin")}, supply=600, check_every_secs=5.0)
    assert busy.probes["a"] >= 60 // 7  # a batch is not interrupted
    bored = played({"a": Device("orin")}, supply=4, builders=1, build_secs=100.0, check_every_secs=5.0)
    assert bored.probes["a"] == pytest.approx(bored.now / 5.0, rel=0.1)


def test_a_fleet_whose_devices_are_all_out_ends_with_what_is_wrong() -> None:
    devices = {"a": Device("orin", outages=((0.0, 1e9),)), "b": Device("orin")}
    world = played(devices, script={0.0: order("b", Admin.RETIRED)}, patience_secs=60.0)
    assert isinstance(world.error, DevicesLostError)
    assert "no device of class orin has answered for 6" in str(world.error)
    assert "a is joining, b is retired" in str(world.error)
    assert world.state.handle(ev.Tick(), world.now) == []


@pytest.mark.parametrize("limits", [Limits(), Limits(time_budget_secs=86_400.0)])
def test_a_fleet_that_is_gone_is_told_at_once_and_ends_the_run_after_the_patience(limits: Limits) -> None:
    devices = {"a": Device("orin", outages=((3.0, 1e9),)), "b": Device("orin", outages=((6.0, 1e9),))}
    world = played(devices, limits=limits, supply=5000)
    assert isinstance(world.error, DevicesLostError)
    notices = [each for each in world.state.progress(world.now).notices if "no device of class orin" in each.text]
    assert [each.text for each in notices] == [
        "no device of class orin can work: simulated outage (a is lost, b is lost); the run ends in 120 s unless one "
        "comes back"
    ]
    assert 6.0 <= notices[0].at_secs <= 12.0
    assert 120.0 <= world.now - notices[0].at_secs <= 122.0
    assert 0 < len(world.trials()) < 120


def test_a_fleet_that_comes_back_in_time_goes_on_and_says_so() -> None:
    devices = {"a": Device("orin", outages=((3.0, 100.0),))}
    world = played(devices, limits=Limits(time_budget_secs=86_400.0), supply=200)
    assert world.outcomes() == {Outcome.OK: 200}
    told = [each.text for each in world.state.progress(world.now).notices if "of class orin" in each.text]
    assert told[-1] == "a device of class orin answers again"


def test_a_class_without_a_device_waits_as_long_as_others_go_on() -> None:
    devices = {"a": Device("orin", outages=((3.0, 1e9),)), "b": Device("server", secs=0.5)}
    world = played(devices, supply=600)
    assert isinstance(world.error, DevicesLostError)
    assert sum(record.device_id == "b" for record in world.trials()) == 600
    assert any("can work" in line and "its tasks wait for one" in line for line in world.lines)
    back = {"a": Device("orin", outages=((3.0, 200.0),)), "b": Device("server", secs=0.5)}
    assert played(back, supply=600).outcomes() == {Outcome.OK: 1200}


def test_a_device_joins_later() -> None:
    late = Device("orin", outages=((0.0, 20.0),))
    world = played({"late": late, "b": Device("orin", secs=0.3)}, supply=300)
    assert any(record.device_id == "late" for record in world.trials())
    assert world.kinds("late")[0] == "joined"  # not lost: it had never been there


def test_a_device_of_which_nothing_was_known_is_taken_when_it_comes() -> None:
    devices = {"a": Device("orin", secs=0.5), "new": Device("orin"), "never": Device("orin")}
    appear = {"new": 10.0, "never": 1e9}
    world = played(devices, supply=300, appear=appear, script={5.0: order("never", Admin.RETIRED)})
    assert world.outcomes() == {Outcome.OK: 300}
    leased = [each.unix_secs for each in world.events if each.device_id == "new" and each.kind == "leased"]
    assert 10.0 <= min(leased) < 20.0
    assert not world.probes["never"]
    told = [each.text for each in world.state.progress(world.now).notices]
    assert "device new answers: it is of class orin" in told


def test_a_device_that_comes_is_what_its_class_has_waited_for() -> None:
    devices = {"a": Device("orin", outages=((3.0, 1e9),)), "new": Device("orin")}
    assert played(devices, appear={"new": 100.0}).outcomes() == {Outcome.OK: 60}
    gone = played(devices, appear={"new": 1000.0}, supply=200)
    assert isinstance(gone.error, DevicesLostError)


def test_a_clock_that_was_put_back_keeps_no_device_in_quarantine() -> None:
    """The last run ended a year ahead of this one."""
    year = 365 * 86_400.0
    state = DeviceState(health=Health.QUARANTINED, quarantines=1, losses=("", "", ""), until_unix_secs=year)
    world = played({"a": Device("orin")}, device_states={"a": state}, patience_secs=2000.0)
    assert world.outcomes() == {Outcome.OK: 60}
    assert health.MAX_PROBATION_SECS <= world.now < health.MAX_PROBATION_SECS + 60.0


def test_an_acquitted_device_is_looked_at_at_once() -> None:
    # Four candidates take their device down; the second device, which is slow, shows whose fault it is.
    poison = frozenset(range(4))
    devices = {"a": Device("orin", poison=poison), "b": Device("orin", secs=6.0, poison=poison)}
    world = played(devices, flow=InFlightLimits(first_batch=6))
    of_a = [event for event in world.events if event.device_id == "a"]
    freed = [each for each in of_a if "out of quarantine" in each.reason]
    assert freed
    for event in freed:
        later = [each.unix_secs for each in of_a if each.unix_secs > event.unix_secs]
        assert min(later) < event.unix_secs + 1.5


def test_what_drifts_during_the_shoot_outs_does_not_hold_up_the_run() -> None:
    tasks = tuple(task_of("orin", f"t{at}") for at in range(4))
    devices = {"a": Device("orin", drifts=((0.0, 1e9),), outages=((6.0, 9.0), (12.0, 14.0), (20.0, 22.0)))}
    world = played(devices, tasks=tasks, supply=14, check_every_secs=1.0)
    assert world.finished


def test_what_waits_for_another_run_is_put_back_and_measured_once_and_its_time_is_told() -> None:
    world = played({"a": Device("orin", others=((1.0, 200.0),)), "b": Device("orin", secs=0.5)}, supply=600)
    assert world.outcomes() == {Outcome.OK: 600}
    assert set(world.runs.values()) == {1}
    assert set(world.state.progress(world.now).devices.values()) == {"good"}, "nobody is blamed"
    assert world.state.progress(world.now).device_time_whole["orin"]["turn"] > 0.0


@pytest.mark.parametrize("end", [partial(ev.BatchMeasured, outcomes={}), ev.ShootOutMeasured, ev.BatchPostponed])
def test_a_task_whose_candidates_a_device_cannot_check_is_named_once_for_each_reason(end: Callable[..., Any]) -> None:
    unchecked = UncheckedTasks(World({"a": Device("orin")}).state.tasks)
    told: list[str] = []
    for reason in ("", "slow", "slow", "slower", "slower", "", ""):
        ended = end(device_id="a", epoch=1, unchecked={ORIN.id: reason})
        told += [each.text for each in unchecked.take(ended)]
    assert told == [
        f"matmul on device a is measured and not checked: {reason} (oracle_secs in its entry of the fleet file)"
        for reason in ("slow", "slower")
    ] + ["matmul on device a is checked from now on: its unscheduled program has run"]


def test_a_shoot_out_that_a_device_has_not_begun_is_held_later() -> None:
    held = played({"a": Device("orin")})
    assert held.met
    others = ((held.now - 4.0, held.now + 10.0),)  # five finalists take three seconds
    later = played({"a": Device("orin", others=others)})
    assert later.met == held.met
    assert later.now > held.now + 10.0
