"""Devices, and whole classes of them, that join and leave while a run goes on."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.device_state import Admin
from fleet_tune.base.domain import Limits, Outcome
from fleet_tune.base.errors import DevicesLostError
from policies.runs import events as ev
from policies.runs.phase import Phase
from tests.helpers.properties import examples
from tests.helpers.run_world import World, played
from tests.helpers.world_devices import Device, order, task_of

OLD, NEW = "server", "orin"
LEFT = "it is no longer in the fleet file"


def fleet(old: int = 2, new: int = 1, old_secs: float = 0.5, new_secs: float = 0.1) -> dict[str, Device]:
    """Devices of the class that is there at the start, and of the one that comes."""
    made = {f"{OLD}-{at}": Device(OLD, old_secs) for at in range(old)}
    return made | {f"{NEW}-{at}": Device(NEW, new_secs) for at in range(new)}


def trials_by_class(world: World) -> Counter[str]:
    return Counter(record.task_id.rpartition("@")[2] for record in world.trials())


def test_a_class_that_nobody_showed_at_the_start_is_tuned_when_it_comes() -> None:
    world = played(fleet(), supply=40, joins={NEW: 5.0})
    assert trials_by_class(world) == {OLD: 40, NEW: 40}
    (first, *_) = (record for record in world.trials() if record.device_id == f"{NEW}-0")
    assert first.unix_secs > 7.0  # of the run: when the network was prepared for it
    assert f"device {NEW}-0 answers: it is of class {NEW}" in world.lines
    progress = world.state.progress(world.now)
    assert {task.device_class for task in progress.tasks} == {OLD, NEW}
    assert progress.devices[f"{NEW}-0"] == "good"
    assert set(progress.device_time_whole) == {OLD, NEW}
    assert len(world.met) == 2  # a shoot-out of each task


def test_a_run_does_not_end_while_the_network_is_prepared_for_a_class() -> None:
    world = played(fleet(), supply=4, joins={NEW: 1.0}, prepare_secs=300.0)
    assert trials_by_class(world) == {OLD: 4, NEW: 4}
    assert world.now > 300.0


def test_a_run_does_not_end_while_the_tasks_of_a_class_are_described() -> None:
    task = task_of(NEW)
    world = played(fleet(), supply=4, joins={NEW: 1.0}, described_at={task.id: 200.0}, tasks=(task_of(OLD), task))
    assert trials_by_class(world) == {OLD: 4, NEW: 4}


def test_a_class_for_which_the_network_cannot_be_prepared_is_left_out_and_the_run_goes_on() -> None:
    world = played(fleet(), supply=60, joins={NEW: 1.0}, unprepared=frozenset({NEW}))
    assert trials_by_class(world) == {OLD: 60}
    assert world.state.progress(world.now).devices[f"{NEW}-0"] == "joining"


def test_a_time_budget_is_kept_whoever_joins() -> None:
    task = task_of(NEW)
    settings = {"tasks": (task_of(OLD), task), "supply": 1000, "limits": Limits(time_budget_secs=60.0)}
    world = played(fleet(old_secs=0.2), joins={NEW: 5.0}, described_at={task.id: 20.0}, **settings)
    assert world.now < 63.0
    assert trials_by_class(world)[NEW] > 50
    late = played(fleet(old_secs=0.2), joins={NEW: 5.0}, described_at={task.id: 500.0}, **settings)
    assert late.now < 63.0
    assert trials_by_class(late)[NEW] == 0
    assert [each.described for each in late.state.progress(60.0).tasks] == [True, False]


def test_a_time_budget_counts_from_when_the_tasks_of_the_start_are_described() -> None:
    old, new = task_of(OLD), task_of(NEW)
    world = played(
        fleet(old_secs=0.2),
        tasks=(old, new),
        supply=1000,
        limits=Limits(time_budget_secs=60.0),
        joins={NEW: 5.0},
        described_at={old.id: 10.0, new.id: 40.0},
        scheduler_lost_at=(50.0,),
    )
    assert 68.0 < world.now < 80.0


def test_of_a_limit_of_trials_a_class_that_joins_has_an_even_share_of_what_is_left() -> None:
    """While its tasks are described, that many are kept for it: here 100 of 200, of which the others have used 40."""
    task = task_of(NEW)
    world = World(
        fleet(old=1),
        tasks=(task_of(OLD), task),
        supply=1000,
        limits=Limits(trials=200),
        joins={NEW: 20.0},
        described_at={task.id: 500.0},
    ).play()
    world.check_end()
    assert len(world.trials()) == 200
    before = [record for record in world.trials() if record.unix_secs < 500.0]
    assert len(before) == 100  # the device measures faster than all others, and had to wait
    assert trials_by_class(world)[NEW] >= 50


def test_a_limit_that_is_used_up_leaves_nothing_for_a_class_that_joins() -> None:
    world = played(fleet(), supply=1000, limits=Limits(trials=20), joins={NEW: 3.0}, prepare_secs=100.0)
    assert trials_by_class(world) == {OLD: 20}
    assert {task.device_class for task in world.state.progress(world.now).tasks} == {OLD, NEW}


def test_a_limit_for_each_task_holds_for_those_of_a_class_that_joins() -> None:
    world = played(fleet(), supply=1000, limits=Limits(task_trials=12), joins={NEW: 30.0})
    assert trials_by_class(world) == {OLD: 12}  # it was over before the class came
    world = played(fleet(), supply=1000, limits=Limits(task_trials=12), joins={NEW: 1.0})
    assert trials_by_class(world) == {OLD: 12, NEW: 12}
    assert world.state.progress(world.now).trial_limit == 24


def test_a_run_that_resumes_knows_what_was_measured_of_a_class_that_is_late_again() -> None:
    first = played(fleet(), supply=60, joins={NEW: 5.0}, limits=Limits(trials=60))
    measured = trials_by_class(first)
    assert measured[NEW] > 0
    world = World(
        fleet(),
        supply=60,
        joins={NEW: 1.0},
        stored=tuple(first.records),
        device_states={event.device_id: event.state for event in first.events},
        run_id="second",
    ).play()
    world.check_end()
    assert trials_by_class(world) == {OLD: 60, NEW: 60}
    mine = [record for record in world.trials() if record.run_id == "second"]
    assert len(mine) == 120 - sum(measured.values())
    task = next(each for each in world.state.tasks.values() if each.device_class == NEW)
    assert task.trials == 60


def test_a_class_that_comes_keeps_a_run_alive_whose_other_devices_are_gone() -> None:
    devices = {f"{OLD}-0": Device(OLD, outages=((5.0, 1e9),)), f"{NEW}-0": Device(NEW)}
    world = World(devices, supply=200, joins={NEW: 60.0}, prepare_secs=200.0).play()
    assert isinstance(world.error, DevicesLostError)  # when nothing else was left to do
    assert trials_by_class(world)[NEW] == 200


def test_a_device_that_is_added_joins_its_class() -> None:
    world = played(fleet(old=3, new=0), supply=200, added={f"{OLD}-2": 10.0})
    assert trials_by_class(world) == {OLD: 200}
    mine = [record for record in world.trials() if record.device_id == f"{OLD}-2"]
    assert min(record.unix_secs for record in mine) > 11.0
    assert len(mine) > 40


def test_a_device_that_is_added_is_waited_for_and_shown() -> None:
    world = World(fleet(old=3, new=0), supply=30, added={f"{OLD}-2": 1.0}, appear={f"{OLD}-2": 1e6}).play()
    world.check_end()
    assert world.state.progress(world.now).devices[f"{OLD}-2"] == "joining"


def test_what_a_device_that_leaves_was_at_is_measured_elsewhere_and_nobody_is_blamed() -> None:
    world = played(fleet(old=2, new=0), supply=80, leave={f"{OLD}-1": 7.1})
    assert trials_by_class(world) == {OLD: 80}
    assert {record.measurement.outcome for record in world.trials()} == {Outcome.OK}
    assert f"device {OLD}-1 leaves: {LEFT}" in world.lines
    assert list(world.state.progress(world.now).devices) == [f"{OLD}-0"]
    kinds = world.kinds(f"{OLD}-1")
    assert kinds[-1] == "left"
    assert not {"lost", "probe_failed"} & set(kinds)
    assert max(record.unix_secs for record in world.trials() if record.device_id == f"{OLD}-1") <= 7.2
    assert world.runs.total() == 80 + sum(count - 1 for count in world.runs.values())


def test_a_device_that_left_and_is_added_again_works_under_newer_leases() -> None:
    name = f"{OLD}-1"
    devices = fleet(old=2, new=0)
    world = World(devices, supply=200, script={20.0: ev.DeviceAdded(name), 21.0: ev.DeviceAnswered(name, OLD)})
    world.leave = {name: 7.1}
    world.play().check_end()
    assert trials_by_class(world) == {OLD: 200}
    times = [record.unix_secs for record in world.trials() if record.device_id == name]
    assert min(times) < 7.1
    assert max(times) > 21.0
    assert not any(7.3 < each < 21.0 for each in times)


def test_a_class_whose_devices_have_all_left_is_given_up_when_no_other_comes() -> None:
    leave = {f"{NEW}-0": 6.0}
    world = played(fleet(old=1), supply=400, leave=leave)
    assert trials_by_class(world)[OLD] == 400
    assert 0 < trials_by_class(world)[NEW] < 400
    (task,) = (each for each in world.state.progress(world.now).tasks if each.device_class == NEW)
    assert task.finish_reason == f"no device of class {NEW} is left in the fleet"
    # Another one comes in time.
    world = played(fleet(new=2), supply=200, leave=leave, added={f"{NEW}-1": 60.0})
    assert trials_by_class(world) == {OLD: 200, NEW: 200}


def test_a_class_whose_devices_are_added_again_late_goes_on_if_others_went_on_meanwhile() -> None:
    """Their host was restarted, which took longer than a device is waited for."""
    name = f"{NEW}-0"
    script = {300.0: ev.DeviceAdded(name), 301.0: ev.DeviceAnswered(name, NEW)}
    world = played({f"{OLD}-0": Device(OLD, secs=2.0), name: Device(NEW)}, supply=300, leave={name: 6.0}, script=script)
    assert trials_by_class(world) == {OLD: 300, NEW: 300}


def test_a_class_whose_devices_are_lost_and_then_leave_waits_for_another_from_then_on() -> None:
    """It was lost for longer than a device is waited for, while others went on."""
    left_at = 300.0
    lost = Device(NEW, outages=((6.0, 1e9),))
    devices = {f"{OLD}-0": Device(OLD, secs=1.0), f"{NEW}-0": lost, f"{NEW}-1": Device(NEW)}
    settings = {"supply": 500, "leave": {f"{NEW}-0": left_at}}
    told = f"no device of class {NEW} is left: its tasks wait 120 s for another"
    # Another one comes in time.
    world = played(devices, added={f"{NEW}-1": left_at + 60.0}, **settings)
    assert trials_by_class(world) == {OLD: 500, NEW: 500}
    assert told in world.lines
    # Nobody comes.
    del devices[f"{NEW}-1"]
    world = played(devices, **settings)
    assert world.now > left_at + 120.0
    assert told in world.lines
    (task,) = (each for each in world.state.progress(world.now).tasks if each.device_class == NEW)
    assert task.finish_reason == f"no device of class {NEW} is left in the fleet"


def test_a_fleet_that_has_left_altogether_ends_the_run_in_good_order_after_the_patience() -> None:
    world = played(fleet(new=0), supply=200, leave={f"{OLD}-0": 6.0, f"{OLD}-1": 8.0})
    assert 128.0 <= world.now < 129.0
    assert world.state.phase is Phase.FINISHED
    assert f"no device of class {OLD} is left: its tasks wait 120 s for another" in world.lines


def test_a_device_that_leaves_while_its_class_is_being_prepared_takes_no_work() -> None:
    world = played(fleet(), supply=30, joins={NEW: 1.0}, prepare_secs=5.0, leave={f"{NEW}-0": 3.0})
    assert trials_by_class(world) == {OLD: 30}
    (task,) = (each for each in world.state.progress(world.now).tasks if each.device_class == NEW)
    assert task.finish_reason == f"no device of class {NEW} is left in the fleet"


def test_a_device_that_people_have_retired_and_that_joins_takes_no_work() -> None:
    name = f"{OLD}-2"
    added = ev.DeviceAdded(name, admin=Admin.RETIRED, reason="test")
    script = {1.0: added, 2.0: ev.DeviceAnswered(name, OLD), 40.0: order(name, Admin.ACTIVE)}
    world = World(fleet(old=3, new=0), supply=200, script=script, appear={}, added={name: math.inf}).play()
    world.check_end()
    times = [record.unix_secs for record in world.trials() if record.device_id == name]
    assert min(times) > 40.0


SECS = st.floats(0.0, 100.0)


@examples(60)
@given(st.data())
def test_whoever_joins_and_leaves_every_candidate_is_recorded_once(data: st.DataObject) -> None:
    devices = fleet(old=3, new=2, new_secs=data.draw(st.sampled_from([0.05, 1.0])))
    coming = data.draw(st.dictionaries(st.sampled_from([f"{OLD}-2", f"{NEW}-1"]), SECS))
    later = data.draw(st.dictionaries(st.sampled_from([f"{OLD}-1", f"{NEW}-0"]), SECS))
    task = task_of(NEW)
    joins = data.draw(SECS)
    prepare_secs = data.draw(st.floats(0.1, 50.0))
    described = {task.id: joins + prepare_secs + data.draw(SECS)} if data.draw(st.booleans()) else {}
    limits = data.draw(st.sampled_from([Limits(), Limits(trials=50), Limits(task_trials=20), Limits(60.0)]))
    lost_at = data.draw(st.lists(SECS, max_size=2).map(tuple)) if limits.trials is None else ()
    world = World(
        devices,
        tasks=(task_of(OLD), task),
        supply=40,
        limits=limits,
        joins={NEW: joins},
        prepare_secs=prepare_secs,
        described_at=described,
        added=coming,
        appear=later,
        leave=data.draw(st.dictionaries(st.sampled_from(sorted(devices)), SECS)),
        scheduler_lost_at=lost_at,
        seed=data.draw(st.integers(0, 3)),
    ).play()
    if world.error is not None:
        assert isinstance(world.error, DevicesLostError)
        return
    world.check_end()
    if limits.trials is not None:
        assert len(world.trials()) <= limits.trials
    for each in world.state.tasks.values():
        assert each.in_flight == 0 or world.limits.time_budget_secs is not None
        given_up = "is left in the fleet" in each.finish_reason
        if limits == Limits() and not given_up:
            assert each.trials == 40


@pytest.mark.parametrize("lost_at", [6.0, 8.0, 30.0])
def test_the_next_scheduler_knows_who_has_joined_and_left(lost_at: float) -> None:
    world = World(
        fleet(new=2, new_secs=1.0),
        supply=200,
        joins={NEW: 5.0},
        leave={f"{OLD}-1": 20.0, f"{NEW}-1": 20.0},
        added={},
        scheduler_lost_at=(lost_at,),
    ).play()
    world.check_end()
    assert trials_by_class(world) == {OLD: 200, NEW: 200}
    late = [record for record in world.trials() if record.unix_secs > 24.0]
    assert {record.device_id for record in late} == {f"{OLD}-0", f"{NEW}-0"}
