"""Runs in virtual time whose builds and builders fail, hang and are killed."""

from __future__ import annotations

import math

from fleet_tune.base.domain import Outcome, StopRule
from fleet_tune.base.errors import BuildersLostError
from policies.measuring.build_limit import LEAST_SECS, UNKNOWN_SECS
from tests.helpers.run_world import World, played
from tests.helpers.world_devices import Device, task_of

ORIN = task_of("orin")


def test_a_machine_of_builders_that_leaves_costs_the_time_until_another_comes() -> None:
    world = played({"a": Device("orin")}, builders=2, build_secs=1.0, builders_left_at=5.3, scheduler_lost_at=(20.0,))
    assert world.outcomes() == {Outcome.OK: 60}
    assert not [line for line in world.lines if "killed" in line or "builder" in line], "nobody is blamed"


def test_a_build_that_takes_too_long_costs_one_builder_its_limit_and_nobody_else_anything() -> None:
    # Five builds never end, when those of the task are known to take a twentieth of a second.
    slow = dict.fromkeys((60, 65, 70, 75, 80), 1e6)
    quick = played({"a": Device("orin")}, builders=2, supply=120)
    world = played({"a": Device("orin")}, builders=2, supply=120, slow_builds=slow)
    assert world.outcomes() == {Outcome.OK: 115, Outcome.BUILD_TIMEOUT: 5}
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


def test_what_does_not_build_is_recorded_as_such() -> None:
    world = played({"a": Device("orin")}, build_fails=frozenset({0, 7, 59}))
    assert world.outcomes() == {Outcome.OK: 57, Outcome.BUILD_ERROR: 3}


def test_a_task_whose_oracle_does_not_build_is_finished_and_the_others_go_on() -> None:
    tasks = (task_of("orin", "bad"), task_of("orin", "good"))
    world = World({"a": Device("orin")}, tasks=tasks, oracle_fails=frozenset({"bad"})).play()
    assert world.finished
    assert {record.task_id for record in world.trials()} == {tasks[1].id}
    [bad, _] = world.state.progress(world.now).tasks
    assert bad.finish_reason == "the unscheduled program does not build: it does not build"


def test_a_builder_that_is_lost_is_no_fault_of_the_candidate_unless_it_happens_again() -> None:
    world = played({"a": Device("orin")}, builders_lost=0.2, supply=200, seed=3)
    blamed = world.outcomes()[Outcome.BUILD_ERROR]
    assert 0 < blamed < 30  # a share of 0.2 * 0.2
    assert world.outcomes()[Outcome.OK] == 200 - blamed


def test_a_build_whose_process_is_killed_is_made_again_and_in_the_end_left_out_without_blame() -> None:
    world = played({"a": Device("orin")}, builds_killed=0.3, supply=200, seed=3)
    left_out = world.state.tasks[ORIN.id].candidates.given_up
    assert 0 < len(left_out) < 20  # a share of 0.3 ** 3
    assert world.outcomes() == {Outcome.OK: 200 - len(left_out)}
    told = [line for line in world.lines if "is skipped" in line]
    assert len(told) == len(left_out)
    assert told[0] == (
        "a candidate of matmul on orin is skipped: the process that built it was ended from outside 3 times: its "
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
    assert world.outcomes() == {Outcome.OK: 800}
    assert world.now > 30.0
    assert 3 <= sum("builder 1: it does not start" in line for line in world.lines) <= 6
    assert any("does not start" in each.text for each in world.state.progress(world.now).notices)


def test_a_run_without_a_builder_that_starts_ends_with_what_is_wrong() -> None:
    world = played({"a": Device("orin")}, builders=2, starts_fail=((1.0, 1e9),))
    assert isinstance(world.error, BuildersLostError)
    assert "no builder works: it does not start" in str(world.error)
    assert world.outcomes().keys() == {Outcome.OK}


def test_builders_that_fail_in_the_shoot_outs_end_these_and_not_the_run() -> None:
    first = played({"a": Device("orin")}, supply=14, rule=StopRule(race_factor=math.inf))
    stored = tuple(first.records)
    second = played({"a": Device("orin")}, supply=14, stored=stored, run_id="second", starts_fail=((0.0, 1e9),))
    assert second.finished
    assert second.met == []


def test_a_shoot_out_whose_oracle_cannot_be_built_is_not_waited_for() -> None:
    """The last scheduler has to build the oracle again. Its build is killed too often, and those of the finalists are
    dropped with it."""
    ended = []
    for seed in range(30):
        world = World(
            {"a": Device("server", secs=0.001), "b": Device("server", secs=0.001), "c": Device("orin", secs=0.001)},
            tasks=(task_of("server"), ORIN),
            supply=40,
            builders=1,
            build_secs=0.001,
            builders_lost=0.5,
            builds_killed=0.3,
            propose_secs=0.001,
            proposals_lost=0.3,
            searcher_restarts=0.2,
            patience_secs=1e9,
            check_every_secs=0.5,
            recorder_secs=3.0,
            builders_that_start=1,
            described_at={ORIN.id: 155.0},
            scheduler_lost_at=(0.0, 1.0, 200.0),
            seed=seed,
        ).play()
        ended.append(world.finished)
    assert all(ended)
