"""Runs in virtual time to their limits: of trials, of time, of one build; and the runs that go on after them."""

from __future__ import annotations

import math
import statistics
from collections import Counter

import pytest

from fleet_tune.base.domain import Limits, StopRule
from fleet_tune.base.results import NotTried
from policies.runs import events as ev
from policies.runs.commands import Propose
from policies.runs.shortfall import SKIPPED, TIME_OVER
from tests.helpers.run_world import World, played
from tests.helpers.world_devices import Device, task_of


def test_a_limit_of_trials_counts_what_was_given_up() -> None:
    world = played({"only": Device("orin", killed=frozenset({5}))}, limits=Limits(trials=20))
    assert len(world.trials()) == 19
    assert world.state.progress(world.now).not_tried == (NotTried(1, SKIPPED),)


def test_every_trial_that_was_asked_for_and_not_made_is_accounted_for() -> None:
    world = played({"only": Device("orin", killed=frozenset({5, 7}))}, limits=Limits(trials=80))
    assert len(world.trials()) == 58  # of the 60 candidates that there are
    reason = "no task wanted more trials: exhausted (1)"
    assert world.state.progress(world.now).not_tried == (NotTried(2, SKIPPED), NotTried(20, reason))

    tasks = (task_of("orin", "a"), task_of("orin", "b"))
    world = played({"d": Device("orin")}, tasks=tasks, limits=Limits(task_trials=70))
    assert world.state.progress(world.now).not_tried == (NotTried(20, "exhausted"),)

    world = played({"d": Device("orin")}, limits=Limits(trials=10**6, time_budget_secs=60.0), supply=100_000)
    made = world.state.progress(world.now).new_trials
    assert world.state.progress(world.now).not_tried == (NotTried(10**6 - made, TIME_OVER),)

    world = played({"d": Device("orin")}, limits=Limits(trials=20))
    assert world.state.progress(world.now).not_tried == ()
    world = played({"d": Device("orin")}, limits=Limits(time_budget_secs=60.0), supply=100_000)
    assert world.state.progress(world.now).not_tried == ()


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


def test_a_large_fleet_is_not_asked_for_in_small_grants() -> None:
    """Equal tasks take turns trial by trial, but a searcher answers one proposal after the other."""
    devices = {f"d{at}": Device("orin") for at in range(48)}
    tasks = tuple(task_of("orin", f"t{at}") for at in range(6))
    limits = Limits(time_budget_secs=60.0)
    world = World(devices, tasks=tasks, builders=64, supply=100_000, limits=limits)
    counts: list[int] = []
    propose = world._searcher.propose

    def counting(command: Propose) -> None:
        counts.append(command.count)
        propose(command)

    world._searcher.propose = counting  # type: ignore[method-assign]
    world.play()
    assert statistics.median(counts) > 8  # the least grant
    assert len(world.trials()) > 8 * len(counts)
