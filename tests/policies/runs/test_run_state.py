"""Runs in virtual time, on fleets with faults: hours of a fleet's life in an instant."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from fleet_tune.device_state import Admin, DeviceState, Health
from fleet_tune.domain import Limits, Outcome, StopRule
from fleet_tune.errors import BuildersLostError, DevicesLostError
from policies.measuring import health
from policies.measuring.build_limit import LEAST_SECS, UNKNOWN_SECS
from policies.runs import events as ev
from policies.runs.plan import Flow
from policies.runs.state import Phase
from tests.helpers.run_world import World, played
from tests.helpers.world_devices import Device, candidate_of, order, task_of

ORIN, SERVER = task_of("orin"), task_of("server")


def outcomes(world: World) -> Counter[Outcome]:
    return Counter(record.measurement.outcome for record in world.trials())


def test_a_quiet_fleet_measures_everything_once() -> None:
    world = played({"server": Device("server"), "orin-1": Device("orin"), "orin-2": Device("orin", secs=0.2)})
    assert outcomes(world) == {Outcome.OK: 120}
    assert world.kinds("server") == ["joined", "probe_passed"]
    by_device = Counter(record.device_id for record in world.trials())
    assert by_device["orin-1"] > 0 < by_device["orin-2"]
    assert set(world.runs.values()) == {1}
    progress = world.state.progress(world.now)
    assert set(progress.devices.values()) == {"good"}
    assert set(progress.queues.values()) == {0}
    assert (progress.phase, progress.trials, progress.new_trials) == ("finished", 120, 120)
    assert all(task.finish_reason == "exhausted: all its candidates are measured (60)" for task in progress.tasks)


def test_a_candidate_may_take_what_its_device_and_its_work_need() -> None:
    devices = {"server": Device("server"), "board-1": Device("orin", secs=20.0), "board-2": Device("orin", secs=20.0)}
    added = {"board-2": 30.0}
    limits = {"board-1": 60.0, "board-2": 90.0}
    # The world asserts the limit of every command, and that its deadline leaves time for it.
    world = played(devices, supply=12, floor_secs=0.5, candidate_secs=limits, added=added, scheduler_lost_at=(60.0,))
    assert {record.device_id for record in world.trials()} == set(devices)


def test_a_machine_of_builders_that_leaves_costs_the_time_until_another_comes() -> None:
    world = played({"a": Device("orin")}, builders=2, build_secs=1.0, builders_left_at=5.3, scheduler_lost_at=(20.0,))
    assert outcomes(world) == {Outcome.OK: 60}
    assert not [line for line in world.lines if "killed" in line or "builder" in line], "nobody is blamed"


def test_an_outage_costs_its_time_and_no_record() -> None:
    world = played({"server": Device("server", outages=((2.0, 40.0),))})
    assert outcomes(world) == {Outcome.OK: 60}
    assert world.now > 40.0
    assert world.kinds("server")[:3] == ["joined", "probe_passed", "lost"]
    assert world.kinds("server")[-3:] == ["joined", "probe_passed", "measured"]
    assert world.state.fleet["server"].losses == ()


def test_a_device_that_keeps_going_away_is_quarantined_for_longer_and_longer() -> None:
    # It answers for two seconds out of every three.
    outages = tuple((3.0 * k + 2.0, 3.0 * k + 3.0) for k in range(60))
    world = played({"a": Device("orin", outages=outages), "b": Device("orin", secs=0.5)}, supply=400)
    assert outcomes(world) == {Outcome.OK: 400}  # no candidate is blamed for it
    quarantines = [e for e in world.events if e.device_id == "a" and "quarantined for" in e.reason]
    lengths = [e.state.until_unix_secs - e.unix_secs for e in quarantines]
    assert len(lengths) >= 2
    assert lengths == pytest.approx([health.probation_secs(at) for at in range(len(lengths))])


def test_a_build_that_takes_too_long_costs_one_builder_its_limit_and_nobody_else_anything() -> None:
    # Five builds never end, when those of the task are known to take a twentieth of a second.
    slow = dict.fromkeys((60, 65, 70, 75, 80), 1e6)
    quick = played({"a": Device("orin")}, builders=2, supply=120)
    world = played({"a": Device("orin")}, builders=2, supply=120, slow_builds=slow)
    assert outcomes(world) == {Outcome.OK: 115, Outcome.BUILD_TIMEOUT: 5}
    late = [record for record in world.trials() if record.measurement.outcome is Outcome.BUILD_TIMEOUT]
    assert {record.measurement.build_secs for record in late} == {LEAST_SECS}
    assert world.now < quick.now + 5 * LEAST_SECS


def test_what_is_built_is_measured_beside_a_build_that_never_ends() -> None:
    # One of two builders hangs from the first candidate on, before anything is known of the task's builds.
    world = World({"a": Device("orin")}, builders=2, supply=5, slow_builds={0: 1e6}).play()
    assert world.error is None
    measured = {record.candidate.decisions[0]: record.seq for record in world.trials()}
    assert sorted(measured) == [0, 1, 2, 3, 4]
    [hung] = [each for each in world.trials() if each.measurement.outcome is Outcome.BUILD_TIMEOUT]
    assert hung.seq == max(measured.values())  # four are fewer than a batch, and wait for nobody
    assert hung.measurement.build_secs == UNKNOWN_SECS


def test_a_limit_that_people_gave_is_that_of_every_build() -> None:
    world = World({"a": Device("orin")}, supply=10, build_timeout_secs=0.5, slow_builds={3: 0.6, 4: 0.3}).play()
    [late] = [each for each in world.trials() if each.measurement.outcome is Outcome.BUILD_TIMEOUT]
    assert (late.candidate.decisions[0], late.measurement.build_secs) == (3, 0.5)


def test_a_poison_candidate_is_tried_on_two_devices_and_blamed() -> None:
    world = played({"a": Device("orin", poison=frozenset({5})), "b": Device("orin", poison=frozenset({5}))})
    assert outcomes(world) == {Outcome.OK: 59, Outcome.RUN_ERROR: 1}
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
    assert outcomes(world) == {Outcome.OK: 1}
    assert world.kinds("only").count("interrupted") == 2
    assert "lost" not in world.kinds("only")


def test_a_candidate_whose_session_is_always_killed_is_left_out_and_neither_it_nor_its_device_is_blamed() -> None:
    world = played({"only": Device("orin", killed=frozenset({5}))})
    assert outcomes(world) == {Outcome.OK: 59}
    assert world.state.tasks[ORIN.id].given_up == {candidate_of(ORIN, 5).id}
    assert world.runs[candidate_of(ORIN, 5).id] == 3
    assert world.kinds("only") == ["joined", "probe_passed"]
    [told] = [each.text for each in world.state.progress(world.now).notices]
    assert told == (
        "a candidate of matmul on orin is left out: the process that measured it was ended from outside 3 times: on "
        "device only"
    )


def test_what_ends_the_process_that_owns_a_device_again_and_again_is_found_and_left_out() -> None:
    world = played({"only": Device("orin", ends_owner=frozenset({5}))})
    assert outcomes(world) == {Outcome.OK: 59}
    assert world.state.tasks[ORIN.id].given_up == {candidate_of(ORIN, 5).id}
    assert world.kinds("only").count("interrupted") == 3
    assert "lost" not in world.kinds("only")
    assert world.state.fleet["only"].losses == ()


def test_a_limit_of_trials_counts_what_was_given_up() -> None:
    world = played({"only": Device("orin", killed=frozenset({5}))}, limits=Limits(trials=20))
    assert len(world.trials()) == 19


def test_a_run_whose_sessions_are_all_killed_ends_with_what_is_wrong() -> None:
    world = played({"only": Device("orin", killed=frozenset(range(60)))})
    assert isinstance(world.error, DevicesLostError)
    assert "5 candidates in a row could not be measured: the process that measured it was ended from outside 3" in str(
        world.error
    )
    assert outcomes(world) == {}


def test_a_device_whose_process_is_always_ended_rests_for_longer_and_longer() -> None:
    world = played({"bad": Device("orin", ends_owner=frozenset(range(60))), "good": Device("orin", secs=2.0)})
    assert len(world.trials()) + len(world.state.tasks[ORIN.id].given_up) == 60
    assert len(world.trials()) >= 50
    kinds = world.kinds("bad")
    assert kinds.count("interrupted") == 3
    assert kinds.count("lost") >= 3
    assert world.state.fleet["good"].losses == ()


def test_poison_on_the_only_device_is_blamed_too() -> None:
    world = played({"only": Device("server", poison=frozenset({3, 20, 41}))})
    assert outcomes(world) == {Outcome.OK: 57, Outcome.RUN_ERROR: 3}
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
    assert outcomes(world) == {Outcome.OK: 60}
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
    assert outcomes(world) == {Outcome.OK: 60}
    assert world.now < 120.0  # of a lease of a quarter of an hour
    assert any("came late" in line for line in world.lines) == (world.now > 100.0)


def test_a_late_answer_changes_nothing() -> None:
    world = played({"only": Device("server", hangs_at=(1.0,))}, supply=1500)
    assert any("came late" in line for line in world.lines)
    assert outcomes(world) == {Outcome.OK: 1500}


def test_what_was_stored_before_the_process_ended_is_not_measured_again() -> None:
    deaths = tuple(float(at) for at in range(1, 40, 4))
    world = played({"only": Device("server", dies_at=deaths)}, supply=300)
    assert outcomes(world) == {Outcome.OK: 300}
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
    assert outcomes(world) == {Outcome.OK: 200}
    told = [each.text for each in world.state.progress(world.now).notices if "of class orin" in each.text]
    assert told[-1] == "a device of class orin answers again"


def test_a_class_without_a_device_waits_as_long_as_others_go_on() -> None:
    devices = {"a": Device("orin", outages=((3.0, 1e9),)), "b": Device("server", secs=0.5)}
    world = played(devices, supply=600)
    assert isinstance(world.error, DevicesLostError)
    assert sum(record.device_id == "b" for record in world.trials()) == 600
    assert any("can work" in line and "its tasks wait for one" in line for line in world.lines)
    back = {"a": Device("orin", outages=((3.0, 200.0),)), "b": Device("server", secs=0.5)}
    assert outcomes(played(back, supply=600)) == {Outcome.OK: 1200}


def test_a_device_joins_later() -> None:
    late = Device("orin", outages=((0.0, 20.0),))
    world = played({"late": late, "b": Device("orin", secs=0.3)}, supply=300)
    assert any(record.device_id == "late" for record in world.trials())
    assert world.kinds("late")[0] == "joined"  # not lost: it had never been there


def test_a_device_of_which_nothing_was_known_is_taken_when_it_comes() -> None:
    devices = {"a": Device("orin", secs=0.5), "new": Device("orin"), "never": Device("orin")}
    appear = {"new": 10.0, "never": 1e9}
    world = played(devices, supply=300, appear=appear, script={5.0: order("never", Admin.RETIRED)})
    assert outcomes(world) == {Outcome.OK: 300}
    leased = [each.unix_secs for each in world.events if each.device_id == "new" and each.kind == "leased"]
    assert 10.0 <= min(leased) < 20.0
    assert not world.probes["never"]
    told = [each.text for each in world.state.progress(world.now).notices]
    assert "device new answers: it is of class orin" in told


def test_a_device_that_comes_is_what_its_class_has_waited_for() -> None:
    devices = {"a": Device("orin", outages=((3.0, 1e9),)), "new": Device("orin")}
    assert outcomes(played(devices, appear={"new": 100.0})) == {Outcome.OK: 60}
    gone = played(devices, appear={"new": 1000.0}, supply=200)
    assert isinstance(gone.error, DevicesLostError)


def test_a_clock_that_was_put_back_keeps_no_device_in_quarantine() -> None:
    """The last run ended a year ahead of this one."""
    year = 365 * 86_400.0
    state = DeviceState(health=Health.QUARANTINED, quarantines=1, losses=("", "", ""), until_unix_secs=year)
    world = played({"a": Device("orin")}, device_states={"a": state}, patience_secs=2000.0)
    assert outcomes(world) == {Outcome.OK: 60}
    assert health.MAX_PROBATION_SECS <= world.now < health.MAX_PROBATION_SECS + 60.0


def test_the_next_run_goes_on_where_the_last_one_ended() -> None:
    first = played({"a": Device("orin")}, limits=Limits(trials=25))
    assert len(first.trials()) == 25
    states = {"a": first.state.fleet["a"]}
    second = played({"a": Device("orin")}, stored=tuple(first.records), device_states=states, run_id="again")
    assert Counter(record.run_id for record in second.trials()) == {"run": 25, "again": 35}
    epoch = first.state.fleet["a"].lease.epoch
    assert min(e.state.lease.epoch for e in second.events if e.kind == "leased") == epoch + 1
    assert second.state.progress(second.now).new_trials == 35


def test_a_limit_that_is_used_up_ends_the_run_at_once() -> None:
    first = played({"a": Device("orin")}, limits=Limits(trials=25), rule=StopRule(race_factor=math.inf))
    second = played(
        {"a": Device("orin")},
        stored=tuple(first.records),
        run_id="again",
        limits=Limits(trials=25),
        rule=StopRule(race_factor=math.inf),
    )
    assert len(second.trials()) == 25
    assert second.now < 1.0


@pytest.mark.parametrize("trials", [1, 7, 8, 50, 61])
def test_the_limit_of_trials_is_kept_exactly(trials: int) -> None:
    world = played({"a": Device("orin"), "b": Device("server")}, limits=Limits(trials=trials))
    assert len(world.trials()) == trials


def test_every_task_gets_its_trials_and_no_more() -> None:
    tasks = (task_of("orin", "a"), task_of("orin", "b", weight=3), task_of("orin", "c"))
    world = played({"d": Device("orin")}, tasks=tasks, limits=Limits(task_trials=13))
    assert Counter(record.task_id for record in world.trials()) == {task.id: 13 for task in tasks}
    assert world.state.progress(world.now).trial_limit == 39


def test_the_time_budget_ends_the_run_with_time_for_its_shoot_outs() -> None:
    world = played({"a": Device("orin")}, limits=Limits(time_budget_secs=60.0), supply=100_000)
    assert 57.0 <= world.now < 75.0
    leased = [e.unix_secs for e in world.events if e.kind == "leased"]
    assert max(leased) < 60.0


def test_every_task_gets_something_where_the_time_is_short() -> None:
    tasks = tuple(task_of("orin", f"t{at}") for at in range(30))
    limits = Limits(time_budget_secs=60.0)  # for 110 builds, oracles among them
    world = played({"a": Device("orin")}, tasks=tasks, builders=2, build_secs=1.0, supply=100, limits=limits)
    trials = Counter(record.task_id for record in world.trials())
    assert len(trials) == 30
    assert min(trials.values()) >= 2


def test_stop_stores_what_is_being_measured_and_begins_nothing_new() -> None:
    world = played({"a": Device("orin")}, supply=100_000, script={10.0: ev.StopRequested()})
    assert 10.0 <= world.now < 12.0
    assert world.met == []
    assert max(e.unix_secs for e in world.events if e.kind == "leased") < 10.0
    assert {record.uid for record in world.records} == {f"run-{each.candidate.id}-0" for each in world.records}


def test_what_does_not_build_is_recorded_as_such() -> None:
    world = played({"a": Device("orin")}, build_fails=frozenset({0, 7, 59}))
    assert outcomes(world) == {Outcome.OK: 57, Outcome.BUILD_ERROR: 3}


def test_a_task_whose_oracle_does_not_build_is_finished_and_the_others_go_on() -> None:
    tasks = (task_of("orin", "bad"), task_of("orin", "good"))
    world = World({"a": Device("orin")}, tasks=tasks, oracle_fails=frozenset({"bad"})).play()
    assert world.finished
    assert {record.task_id for record in world.trials()} == {tasks[1].id}
    [bad, _] = world.state.progress(world.now).tasks
    assert bad.finish_reason == "the unscheduled program does not build: it does not build"


def test_a_builder_that_is_lost_is_no_fault_of_the_candidate_unless_it_happens_again() -> None:
    world = played({"a": Device("orin")}, builders_lost=0.2, supply=200, seed=3)
    blamed = outcomes(world)[Outcome.BUILD_ERROR]
    assert 0 < blamed < 30  # a share of 0.2 * 0.2
    assert outcomes(world)[Outcome.OK] == 200 - blamed


def test_a_build_whose_process_is_killed_is_made_again_and_in_the_end_left_out_without_blame() -> None:
    world = played({"a": Device("orin")}, builds_killed=0.3, supply=200, seed=3)
    left_out = world.state.tasks[ORIN.id].given_up
    assert 0 < len(left_out) < 20  # a share of 0.3 ** 3
    assert outcomes(world) == {Outcome.OK: 200 - len(left_out)}
    told = [line for line in world.lines if "is left out" in line]
    assert len(told) == len(left_out)
    assert told[0] == (
        "a candidate of matmul on orin is left out: the process that built it was ended from outside 3 times: its "
        "process ended"
    )


def test_a_run_whose_builds_are_all_killed_ends_with_what_is_wrong() -> None:
    tasks = tuple(task_of("orin", name) for name in "abcdef")
    world = played({"a": Device("orin")}, tasks=tasks, builds_killed=1.0)
    assert isinstance(world.error, BuildersLostError)
    assert "5 candidates in a row could not be built: the process that built it was ended from outside 3 times" in str(
        world.error
    )


def test_builders_that_do_not_start_cost_no_candidate_and_rest_for_longer_and_longer() -> None:
    fleet = {"a": Device("orin", secs=0.01)}
    world = played(fleet, builders=2, starts_fail=((1.0, 30.0),), builders_that_start=1, supply=800)
    assert outcomes(world) == {Outcome.OK: 800}
    assert world.now > 30.0
    assert 3 <= sum("builder 1: it does not start" in line for line in world.lines) <= 6
    assert any("does not start" in each.text for each in world.state.progress(world.now).notices)


def test_a_run_without_a_builder_that_starts_ends_with_what_is_wrong() -> None:
    world = played({"a": Device("orin")}, builders=2, starts_fail=((1.0, 1e9),))
    assert isinstance(world.error, BuildersLostError)
    assert "no builder works: it does not start" in str(world.error)
    assert outcomes(world).keys() == {Outcome.OK}


def test_builders_that_fail_in_the_shoot_outs_end_these_and_not_the_run() -> None:
    first = played({"a": Device("orin")}, supply=14, rule=StopRule(race_factor=math.inf))
    stored = tuple(first.records)
    second = played({"a": Device("orin")}, supply=14, stored=stored, run_id="second", starts_fail=((0.0, 1e9),))
    assert second.finished
    assert second.met == []


def test_a_searcher_that_begins_anew_may_propose_what_is_under_way_again() -> None:
    world = played({"a": Device("orin", secs=0.5)}, searcher_restarts=0.5, recorder_secs=2.0, propose_secs=1.0)
    assert outcomes(world) == {Outcome.OK: 60}
    assert set(world.runs.values()) == {1}


def test_candidates_wait_for_an_oracle_that_takes_long() -> None:
    world = played({"a": Device("orin"), "b": Device("orin")}, oracle_secs=30.0)
    assert outcomes(world) == {Outcome.OK: 60}
    assert min(e.unix_secs for e in world.events if e.kind == "leased") > 30.0


def test_a_lease_has_room_for_oracles_that_take_long() -> None:
    # The world looks at the deadline of every batch.
    assert outcomes(played({"a": Device("orin")}, oracle_run_secs=1000.0)) == {Outcome.OK: 60}


def test_an_acquitted_device_is_looked_at_at_once() -> None:
    # Four candidates take their device down; the second device, which is slow, shows whose fault it is.
    poison = frozenset(range(4))
    devices = {"a": Device("orin", poison=poison), "b": Device("orin", secs=6.0, poison=poison)}
    world = played(devices, flow=Flow(first_batch=6))
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


def test_a_searcher_that_does_not_answer_is_asked_again() -> None:
    world = played({"a": Device("orin")}, proposals_lost=0.3)
    assert outcomes(world) == {Outcome.OK: 60}
    assert any("searcher of matmul" in line for line in world.lines)


def test_a_searcher_that_always_dies_over_a_task_ends_that_task_and_not_the_run() -> None:
    tasks = (task_of("orin", "bad"), task_of("orin", "good"), task_of("server", "good"))
    devices = {"a": Device("orin"), "b": Device("server")}
    world = played(devices, tasks=tasks, searcher_dies=frozenset({"bad"}), supply=200)
    assert Counter(record.task_id for record in world.trials()) == {tasks[1].id: 200, tasks[2].id: 200}
    bad = world.state.progress(world.now).tasks[0]
    assert bad.finish_reason == "its searcher failed 5 times in a row: its process ended"
    assert any("bad on orin is given up" in each.text for each in world.state.progress(world.now).notices)


def test_a_task_is_not_given_up_for_what_the_searcher_does_over_another_one() -> None:
    tasks = tuple(task_of(each, name) for each in ("orin", "server") for name in ("bad", "good"))
    devices = {"a": Device("orin"), "b": Device("server")}
    # Proposals take long: there is always one of each class under way.
    world = played(devices, tasks=tasks, searcher_dies=frozenset({"bad"}), supply=40, propose_secs=5.0)
    assert {task.name: task.trials for task in world.state.progress(world.now).tasks} == {"bad": 0, "good": 40}


def test_a_searcher_that_never_works_ends_the_run_without_a_trial() -> None:
    world = played({"a": Device("orin")}, searcher_dies=frozenset({"matmul"}))
    assert world.trials() == []
    assert world.now < 60.0


def test_a_recorder_that_takes_half_a_minute_slows_the_run_and_nothing_else() -> None:
    world = played({"a": Device("orin"), "b": Device("server")}, recorder_secs=30.0)
    assert outcomes(world) == {Outcome.OK: 120}
    assert set(world.runs.values()) == {1}
    for name in ("a", "b"):
        assert "lost" not in world.kinds(name)


# Size ----------------------------------------------------------------------------------------------------------------


def test_a_thousand_devices_of_three_classes_are_kept_busy() -> None:
    classes = ("server", "orin", "nano")
    devices = {f"{each}-{at}": Device(each, secs=1.0) for each in classes for at in range(334)}
    tasks = tuple(task_of(each, name) for each in classes for name in ("a", "b", "c"))
    world = World(
        devices, tasks=tasks, builders=300, supply=4000, build_secs=0.2, oracle_secs=5.0, limits=Limits(trials=12_000)
    )
    world.play()
    world.check_end()
    assert world.state.phase is Phase.FINISHED
    assert len(world.trials()) == 12_000
    assert len({record.device_id for record in world.trials()}) == len(devices)


def test_a_run_that_resumes_builds_the_incumbent_for_those_who_are_to_meet_it() -> None:
    first = World({"a": Device("orin")}, supply=10).play()
    [task] = first.state.tasks.values()
    best = task.ranking.best
    assert best is not None
    collecting = StopRule(race_factor=math.inf)  # no shoot-out, which would build it too
    stored = tuple(first.records)
    second = World({"a": Device("orin")}, supply=20, stored=stored, run_id="second", rule=collecting).play()
    assert best.id in second.built_ever
    second.check_end()


def test_devices_measure_while_tasks_are_still_being_described() -> None:
    tasks = (task_of("server", "early"), task_of("server", "late"), task_of("server", "never"))
    early, late, never = (task.id for task in tasks)
    world = World(
        {"server": Device("server")}, tasks=tasks, described_at={late: 300.0, never: 400.0}, left_out=frozenset({never})
    )
    shown = {each.task_id: (each.described, each.sketches) for each in world.state.progress(0.0).tasks}
    assert shown == {early: (True, 1), late: (False, 0), never: (False, 0)}
    world.play()
    world.check_end()
    first = {task.id: min((r.unix_secs for r in world.trials() if r.task_id == task.id), default=0) for task in tasks}
    assert 0 < first[early] < 300.0 < first[late]
    assert world.now >= 400.0  # a task that may still come is waited for
    assert [each.task_id for each in world.state.progress(world.now).tasks] == [early, late]


def test_a_task_that_is_being_described_finds_an_even_share_of_the_trials() -> None:
    tasks = (task_of("server", "early", weight=100), task_of("server", "late"))
    world = World(
        {"server": Device("server")}, tasks=tasks, limits=Limits(trials=40), described_at={tasks[1].id: 300.0}
    ).play()
    world.check_end()
    before = [record for record in world.trials() if record.unix_secs < 300.0]
    assert Counter(record.task_id for record in before) == {tasks[0].id: 20}
    assert len(world.trials()) == 40


def test_a_limit_that_is_reached_waits_for_no_task() -> None:
    tasks = (task_of("server", "early"), task_of("server", "late"))
    first = World({"server": Device("server")}, tasks=tasks, limits=Limits(trials=40)).play()
    again = World(
        {"server": Device("server")},
        tasks=tasks,
        limits=Limits(trials=40),
        stored=tuple(first.records),
        described_at={task.id: 300.0 for task in tasks},
        run_id="second",
    ).play()
    again.check_end()
    assert again.now < 300.0
    shown = again.state.progress(again.now).tasks
    assert [(each.described, each.best_rule) for each in shown] == [(False, "")] * 2
    assert all(math.isfinite(each.best_secs) for each in shown)


def test_whose_turn_a_device_is_is_told_since_the_first_moment_until_it_is_this_runs() -> None:
    world = World({"server": Device("server")})
    behind = []
    for now, title in ((5.0, "net (run 1)"), (9.0, "net (run 2)"), (12.0, "")):
        world.state.handle(ev.Waits("server", title), now)
        behind.append(dict(world.state.progress(now).behind))
    assert behind == [{"server": ("net (run 1)", 5.0)}, {"server": ("net (run 2)", 5.0)}, {}]


def test_what_waits_for_another_run_is_put_back_and_measured_once_and_its_time_is_told() -> None:
    world = played({"a": Device("orin", others=((1.0, 200.0),)), "b": Device("orin", secs=0.5)}, supply=600)
    assert outcomes(world) == {Outcome.OK: 600}
    assert set(world.runs.values()) == {1}
    assert set(world.state.progress(world.now).devices.values()) == {"good"}, "nobody is blamed"
    assert world.state.progress(world.now).device_time_whole["orin"]["turn"] > 0.0


def test_a_run_whose_devices_are_all_anothers_ends_with_its_time() -> None:
    world = played({"a": Device("orin", others=((1.0, 1e6),))}, limits=Limits(time_budget_secs=100.0))
    assert world.state.phase is Phase.FINISHED
    assert 100.0 <= world.now <= 100.0 + 2 * 60.0
