"""Runs in virtual time, on fleets with faults: hours of a fleet's life in an instant."""

from __future__ import annotations

from collections import Counter

from fleet_tune.base.domain import Limits, Outcome
from policies.runs import events as ev
from policies.runs.phase import Phase
from tests.helpers.run_world import World, played
from tests.helpers.world_devices import Device, task_of


def test_a_quiet_fleet_measures_everything_once() -> None:
    world = played({"server": Device("server"), "orin-1": Device("orin"), "orin-2": Device("orin", secs=0.2)})
    assert world.outcomes() == {Outcome.OK: 120}
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


def test_a_searcher_that_begins_anew_may_propose_what_is_under_way_again() -> None:
    world = played({"a": Device("orin", secs=0.5)}, searcher_restarts=0.5, recorder_secs=2.0, propose_secs=1.0)
    assert world.outcomes() == {Outcome.OK: 60}
    assert set(world.runs.values()) == {1}


def test_candidates_wait_for_an_oracle_that_takes_long() -> None:
    world = played({"a": Device("orin"), "b": Device("orin")}, oracle_secs=30.0)
    assert world.outcomes() == {Outcome.OK: 60}
    assert min(e.unix_secs for e in world.events if e.kind == "leased") > 30.0


def test_a_lease_has_room_for_oracles_that_take_long() -> None:
    # The world looks at the deadline of every batch.
    assert played({"a": Device("orin")}, oracle_run_secs=1000.0).outcomes() == {Outcome.OK: 60}


def test_a_searcher_that_does_not_answer_is_asked_again() -> None:
    world = played({"a": Device("orin")}, proposals_lost=0.3)
    assert world.outcomes() == {Outcome.OK: 60}
    assert any("searcher of matmul" in line for line in world.lines)


def test_a_searcher_that_always_dies_over_a_finisher_that_task_and_not_the_run() -> None:
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
    assert world.outcomes() == {Outcome.OK: 120}
    assert set(world.runs.values()) == {1}
    for name in ("a", "b"):
        assert "lost" not in world.kinds(name)


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


def test_whose_turn_a_device_is_is_told_since_the_first_moment_until_it_is_this_runs() -> None:
    world = World({"server": Device("server")})
    behind = []
    for now, title in ((5.0, "net (run 1)"), (9.0, "net (run 2)"), (12.0, "")):
        world.state.handle(ev.DeviceInUse("server", title), now)
        behind.append(dict(world.state.progress(now).behind))
    assert behind == [{"server": ("net (run 1)", 5.0)}, {"server": ("net (run 2)", 5.0)}, {}]


def test_a_run_whose_devices_are_all_anothers_ends_with_its_time() -> None:
    world = played({"a": Device("orin", others=((1.0, 1e6),))}, limits=Limits(time_budget_secs=100.0))
    assert world.state.phase is Phase.FINISHED
    assert 100.0 <= world.now <= 100.0 + 2 * 60.0
