"""The final round of a run, in virtual time: who meets whom, and what faults cost it."""

from __future__ import annotations

import math
from dataclasses import replace

from fleet_tune.base.device_state import Admin
from fleet_tune.base.domain import StopRule
from tests.helpers.run_world import World, played
from tests.helpers.world_devices import Device, order, task_of


def test_every_task_has_its_shoot_out_the_heaviest_first() -> None:
    tasks = (task_of("orin", "light"), task_of("orin", "heavy", weight=5))
    world = played({"a": Device("orin")}, tasks=tasks, supply=14)
    assert [task for _, task in world.met] == [tasks[1].id, tasks[0].id]
    revisions = [record for record in world.records if record.revision]
    assert {record.revision for record in revisions} == {1}
    assert {record.task_id for record in revisions} == {task.id for task in tasks}


def test_a_task_of_which_nothing_is_checked_comes_first() -> None:
    """It has no kernel besides the untuned one."""
    tasks = (task_of("orin", "light"), task_of("orin", "heavy", weight=5))
    first = played({"a": Device("orin")}, tasks=tasks, supply=14, rule=StopRule(race_factor=math.inf))
    stored = tuple(
        replace(each, measurement=replace(each.measurement, verified=False)) if each.task_id == tasks[0].id else each
        for each in first.records
    )
    second = played({"a": Device("orin")}, tasks=tasks, supply=14, stored=stored, run_id="second")
    assert [task for _, task in second.met] == [tasks[0].id, tasks[1].id]


def test_all_devices_of_a_class_hold_shoot_outs() -> None:
    tasks = tuple(task_of("orin", f"t{at}") for at in range(8))
    world = played({"a": Device("orin"), "b": Device("orin")}, tasks=tasks, supply=14)
    assert len(world.met) == 8
    assert {device for device, _ in world.met} == {"a", "b"}


def test_a_run_that_collects_holds_none() -> None:
    world = played({"a": Device("orin")}, supply=14, rule=StopRule(race_factor=math.inf))
    assert world.met == []


def test_finalists_of_an_earlier_run_are_built_again_and_decided_only_once() -> None:
    first = played({"a": Device("orin")}, supply=14, rule=StopRule(race_factor=math.inf))
    second = played({"a": Device("orin")}, supply=14, stored=tuple(first.records), run_id="second")
    assert len(second.met) == 1
    assert second.state.progress(second.now).new_trials == 0
    third = played({"a": Device("orin")}, supply=14, stored=tuple(second.records), run_id="third")
    assert third.met == []


def tied(**faults: object) -> World:
    """Play a run that has to decide the ties of an earlier run: two tasks, on one device with faults."""
    tasks = (task_of("orin", "second"), task_of("orin", "first", weight=2))
    earlier = played({"a": Device("orin")}, tasks=tasks, supply=14, rule=StopRule(race_factor=math.inf))
    script = faults.pop("script", {})
    return played(
        {"a": Device("orin", **faults)},  # type: ignore[arg-type]
        tasks=tasks,
        supply=14,
        stored=tuple(earlier.records),
        run_id="second",
        script=script,
    )


def test_a_device_that_had_no_time_to_join_does_so_for_the_shoot_outs() -> None:
    assert len(tied().met) == 2


def test_a_process_that_hangs_in_a_shoot_out_is_restarted_and_the_next_task_has_its_own() -> None:
    world = tied(hangs_at=(0.5,))
    assert world.restarts["a"] == 1
    assert [task for _, task in world.met] == [task_of("orin", "second").id]
    assert world.now < 60.0


def test_a_device_that_does_not_come_back_ends_the_round_and_not_the_run() -> None:
    world = tied(outages=((0.0, 1e6),))
    assert world.met == []
    assert 30.0 <= world.now < 60.0


def test_a_device_that_comes_back_serves_the_next_task() -> None:
    world = tied(outages=((0.0, 10.0),))
    assert len(world.met) == 2
    assert world.now < 30.0


def test_a_device_that_people_take_out_meanwhile_is_left_alone() -> None:
    world = tied(script={0.0: order("a", Admin.MAINTENANCE)})
    assert world.met == []
    assert world.state.fleet["a"].word == "maintenance"
    assert world.measured_under["a"] == []


def test_a_finalist_that_does_not_build_any_more_is_left_out() -> None:
    first = played({"a": Device("orin")}, supply=21, rule=StopRule(race_factor=math.inf))
    second = World(
        {"a": Device("orin")}, supply=21, stored=tuple(first.records), run_id="second", build_fails=frozenset({7})
    ).play()
    assert len(second.met) == 1
    met = {record.candidate.decisions[0] for record in second.records if record.revision}
    assert met == {14}  # and the incumbent, of which nothing new is known
