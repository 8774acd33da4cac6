"""Tasks that a shared store settles for a run."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest

from fleet_tune.base.device_state import Admin, DeviceState, Health
from fleet_tune.base.domain import Limits
from policies.runs.plan import RunPlan
from policies.runs.planned_task import PlannedTask
from policies.runs.spared import last_snapshot
from policies.runs.warm_start import Share, covered, effort_of, share_of
from policies.search.bandits import TaskBandit
from tests.helpers.records import make_record, ok
from tests.helpers.run_world import World
from tests.helpers.world_devices import Device, candidate_of, task_of


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        (Limits(600.0), Share(30.0, None)),
        (Limits(None, 400), Share(None, 20.0)),
        (Limits(600.0, 400, 8), Share(30.0, 8.0)),
        (Limits(None, None, 8), Share(None, 8.0)),
    ],
)
def test_what_a_run_asks_for_each_of_20_tasks(limits: Limits, share: Share) -> None:
    assert share_of(limits, 20) == share


def _spent(secs: float, trials: int, tasks: int, reason: str = "") -> tuple[float, float]:
    spent = effort_of(secs, trials, tasks, reason, Share(None, None), tried=True)
    assert spent is not None
    return spent


def test_a_task_is_settled_by_a_run_that_spent_as_much_on_it() -> None:
    asked = share_of(Limits(600.0), 20)
    assert not covered(asked, [])
    assert covered(asked, [_spent(603.0, 150, 20)]), "the same run"
    assert covered(asked, [_spent(1200.0, 300, 40)]), "a longer one of more tasks"
    assert not covered(asked, [_spent(300.0, 9999, 20)]), "a shorter one"
    assert not covered(share_of(Limits(6000.0), 20), [_spent(600.0, 150, 20)]), "more is asked for now"
    assert covered(share_of(Limits(6000.0), 20), [_spent(5.0, 1, 20, "converged: ...")])
    assert not covered(asked, [_spent(200.0, 0, 20), _spent(400.0, 0, 20)]), "several are not one"


def test_what_was_confirmed_had_as_much_spent_on_it_as_was_asked() -> None:
    asked = share_of(Limits(600.0), 20)
    spent = effort_of(3.0, 3, 20, "confirmed by 3 trials of what the store has", asked, tried=True)
    assert spent == (30.0, 0.0)
    assert covered(asked, [spent])
    assert not covered(share_of(Limits(6000.0), 20), [spent])


@pytest.mark.parametrize(
    ("reason", "tried", "spent"),
    [
        ("", True, (30.0, 5.0)),
        ("", False, None),  # no device of its class was there
        ("its searcher failed 3 times in a row: boom", True, None),
        ("the unscheduled program does not build: boom", False, None),
        ("exhausted: all its candidates are measured (9)", False, (math.inf, math.inf)),  # by an earlier run
    ],
)
def test_nothing_is_spent_on_a_task_that_was_not_searched(
    reason: str, tried: bool, spent: tuple[float, float] | None
) -> None:
    assert effort_of(600.0, 100, 20, reason, share_of(Limits(600.0), 20), tried) == spent


def test_a_run_of_two_limits_ends_with_the_first_that_it_reaches() -> None:
    asked = share_of(Limits(600.0, 400), 20)
    assert covered(asked, [(3.0, 20.0)])
    assert covered(asked, [(30.0, 2.0)])
    assert not covered(asked, [(3.0, 2.0)])
    assert covered(asked, [(math.inf, math.inf)])


def test_tasks_that_are_settled_get_no_trial_and_no_shoot_out() -> None:
    settled, tuned = task_of("board", "conv"), task_of("board", "dense")
    found = tuple(
        dataclasses.replace(
            make_record(candidate_of(task, number), ok(1e-3 * (1 + number)), revision=1), run_id="other", seq=1 + at
        )
        for at, (task, number) in enumerate((task, number) for task in (settled, tuned) for number in range(3))
    )
    world = World(
        {"one": Device("board")},
        (settled, tuned),
        limits=Limits(trials=12),
        stored=found,
        settled={settled.id: "found in the store"},
    ).play()
    world.check_end()
    assert {record.task_id for record in world.trials() if record.run_id == "run"} == {tuned.id}
    assert settled.id not in {task_id for _, task_id in world.met}
    shown = {task.task_id: task for task in world.state.progress(world.now).tasks}
    assert (shown[settled.id].trials, shown[settled.id].finish_reason) == (0, "found in the store")
    assert shown[settled.id].best_secs == pytest.approx(1.05e-3), "with its standard error"
    assert shown[tuned.id].trials == 12, "what others have measured is no trial of this run"


def test_a_run_whose_tasks_are_all_settled_measures_nothing() -> None:
    task = task_of("board")
    found = dataclasses.replace(make_record(candidate_of(task, 0), ok(1e-3), revision=1), seq=1)
    late = {task.id: 5.0}
    world = World(
        {"one": Device("board")},
        (task,),
        limits=Limits(600.0),
        stored=(found,),
        settled={task.id: "found in the store"},
        described_at=late,
    ).play()
    assert not world.trials()
    assert not world.built_ever


def test_of_a_run_whose_tasks_are_all_settled_the_end_is_known_without_anybody_who_does_anything() -> None:
    settled, tuned = task_of("board", "conv"), task_of("board", "dense")
    words = [
        dataclasses.replace(make_record(candidate_of(task, 0), ok(secs), revision=1), run_id="other", seq=seq)
        for seq, (task, secs) in enumerate(((settled, 2e-3), (tuned, 1e-3)), 1)
    ]
    planned = tuple(PlannedTask(task, None, 1e-9, settled="found in the store") for task in (settled, tuned))
    plan = RunPlan("run", planned, {"one": "board", "absent": ""}, builders=2, limits=Limits(600.0, trials=50))
    states = {"one": DeviceState(admin=Admin.ACTIVE, health=Health.GOOD)}
    last = last_snapshot(plan, TaskBandit(), words, states, ["device absent does not answer"])
    assert (last.phase, last.trials, last.new_trials) == ("finished", 0, 0)
    assert [(task.best_secs, task.finish_reason) for task in last.tasks] == [
        (pytest.approx(2.1e-3), "found in the store"),
        (pytest.approx(1.05e-3), "found in the store"),
    ]
    assert [notice.text for notice in last.notices] == ["device absent does not answer"]
    half = dataclasses.replace(plan, tasks=(planned[0], dataclasses.replace(planned[1], settled="")))
    with pytest.raises(ValueError, match="settled"):
        last_snapshot(half, TaskBandit(), words, states)


def test_a_task_is_confirmed_by_its_first_trials_and_gets_no_more() -> None:
    confirmed, tuned = task_of("board", "conv"), task_of("board", "dense")
    world = World(
        {"one": Device("board")},
        (confirmed, tuned),
        limits=Limits(trials=20),
        described_at={confirmed.id: 1.0},
        confirmation_trials={confirmed.id: 3},
    ).play()
    world.check_end()
    trials = Counter(record.task_id for record in world.trials())
    assert trials == {confirmed.id: 3, tuned.id: 17}
    shown = {task.task_id: task for task in world.state.progress(world.now).tasks}
    assert shown[confirmed.id].finish_reason == "confirmed by 3 trials of what the store has"


def test_a_task_of_which_nothing_is_right_any_more_is_searched() -> None:
    task = task_of("board")
    world = World(
        {"one": Device("board")},
        (task,),
        limits=Limits(trials=12),
        build_fails=frozenset({0, 1, 2}),
        described_at={task.id: 1.0},
        confirmation_trials={task.id: 3},
    ).play()
    world.check_end()
    assert len(world.trials()) == 12


def test_what_an_earlier_run_has_confirmed_needs_no_trial() -> None:
    task = task_of("board")
    stored = tuple(dataclasses.replace(make_record(candidate_of(task, at), ok(1e-3)), seq=at + 1) for at in range(3))
    world = World(
        {"one": Device("board")},
        (task,),
        limits=Limits(600.0),
        stored=stored,
        described_at={task.id: 1.0},
        confirmation_trials={task.id: 3},
    ).play()
    assert len(world.trials()) == 3
