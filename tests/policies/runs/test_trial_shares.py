"""Shares of device classes in a limit of trials: by hand, and in whole runs in virtual time."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest

from fleet_tune.base.domain import Limits
from policies.runs.stages.trial_shares import share_of_each_task
from tests.helpers.run_world import World, played
from tests.helpers.world_devices import Device, task_of

FAST, SLOW = Device("server", secs=0.02), Device("orin", secs=1.0)


def test_shares_by_hand() -> None:
    tasks = {"a": 3, "b": 1}
    assert share_of_each_task(100, tasks, {"a": 0, "b": 0}, ["a", "b"]) == 25
    # What one has used that can use no more is its own: 90 trials for one task, and 70 for three.
    assert share_of_each_task(100, tasks, {"a": 10, "b": 0}, ["b"]) == 90
    assert share_of_each_task(100, tasks, {"a": 10, "b": 30}, ["a"]) == Fraction(70, 3)
    # One that has had more than its share keeps it.
    assert share_of_each_task(100, tasks, {"a": 0, "b": 60}, ["a", "b"]) == Fraction(40, 3)
    assert share_of_each_task(100, tasks, {"a": 100, "b": 0}, ["a", "b"]) == 0
    assert share_of_each_task(100, tasks, {"a": 0, "b": 0}, []) == 0


def _by_class(world: World) -> dict[str, int]:
    return dict(Counter(record.task_id.partition("@")[2] for record in world.trials()))


def test_a_fast_class_leaves_a_slow_one_its_share() -> None:
    world = played({"fast": FAST, "slow": SLOW}, limits=Limits(trials=200), supply=1000)
    assert _by_class(world) == {"server": 100, "orin": 100}


def test_shares_follow_the_number_of_tasks() -> None:
    tasks = (*(task_of("server", f"t{at}") for at in range(3)), task_of("orin", "t"))
    world = played({"fast": FAST, "slow": SLOW}, tasks=tasks, limits=Limits(trials=100), supply=1000)
    assert _by_class(world) == {"server": 75, "orin": 25}


def test_what_a_class_cannot_use_is_for_the_others() -> None:
    tasks = (task_of("server"), task_of("orin"))
    world = played({"fast": FAST, "slow": SLOW}, tasks=tasks, limits=Limits(trials=100), supply=20)
    assert _by_class(world) == {"server": 20, "orin": 20}


@pytest.mark.parametrize("outage", [(0.0, 1e9), (3.0, 1e9)], ids=["from the start", "under way"])
def test_a_class_that_is_lost_for_good_ends_the_run_and_keeps_nothing(outage: tuple[float, float]) -> None:
    devices = {"fast": FAST, "slow": Device("orin", secs=1.0, outages=(outage,))}
    world = played(devices, limits=Limits(trials=200), supply=1000)
    made = _by_class(world)
    assert made["server"] >= 180
    assert made.get("orin", 0) < 20
    assert world.error is not None
    assert world.now < 1000.0


def test_a_class_that_comes_back_shares_what_is_left() -> None:
    devices = {"fast": FAST, "slow": Device("orin", secs=1.0, outages=((3.0, 60.0),))}
    world = played(devices, limits=Limits(trials=200), supply=1000)
    assert _by_class(world) == {"server": 100, "orin": 100}


def test_the_next_run_goes_on_with_the_shares() -> None:
    first = played({"fast": FAST}, tasks=(task_of("server"),), limits=Limits(trials=150), supply=1000)
    tasks = (task_of("server"), task_of("orin"))
    again = played(
        {"fast": FAST, "slow": SLOW},
        tasks=tasks,
        limits=Limits(trials=200),
        supply=1000,
        stored=tuple(first.records),
        run_id="again",
    )
    assert _by_class(again) == {"server": 150, "orin": 50}


def test_a_finished_task_whose_devices_leave_with_candidates_under_way_holds_up_nobody() -> None:
    """Its limit is reached when the last device leaves, and what is built waits."""
    devices = {"fast": FAST, "slow": SLOW}
    world = played(devices, limits=Limits(task_trials=30), supply=1000, leave={"slow": 20.0}, patience_secs=60.0)
    assert _by_class(world)["server"] == 30
    assert world.now < 200.0
