"""The plan of a run after events: what a scheduler starts with that takes the place of a lost one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.results import ProcessRole
from fleet_tune.base.timeouts import BOARD, CPU
from policies.runs import events as ev
from policies.runs.events import ProcessRestarted
from policies.runs.plan import RunPlan
from policies.runs.planned_task import PlannedTask
from policies.runs.state import RunState
from policies.search.bandits import TaskBandit
from tests.helpers.properties import examples
from tests.helpers.tasks import make_task

CLASSES = ("server", "orin", "nano")
TASKS = {each: tuple(make_task(name, each) for name in ("a", "b")) for each in CLASSES}
TASK_IDS = [task.id for tasks in TASKS.values() for task in tasks]
DEVICES = ("first", "second", "third")
PLAN = RunPlan(
    "run",
    tuple(PlannedTask(task, None, 1e-9) for task in TASKS["server"]),
    {"first": "server", "second": ""},
    builders=2,
    timeouts={"first": BOARD},
)


def late(device_class: str) -> ev.ClassAdded:
    return ev.ClassAdded(device_class, tuple(PlannedTask(task, None, 1e-9, late=True) for task in TASKS[device_class]))


device_ids, classes, numbers = (
    st.sampled_from(DEVICES),
    st.sampled_from(CLASSES),
    st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple),
)
events = st.one_of(
    st.builds(ev.DeviceAdded, device_ids, timeouts=st.sampled_from([None, CPU, BOARD])),
    st.builds(ev.DeviceAnswered, device_ids, classes),
    st.builds(ev.DeviceLeft, device_ids, st.just("it is no longer in the fleet file")),
    st.builds(ev.ClassAwaited, classes),
    classes.map(late),
    st.builds(ev.ClassAdded, classes),
    st.builds(ev.BuildersAdded, numbers),
    st.builds(ev.BuildersLeft, numbers),
    st.builds(
        ev.SketchesReady,
        st.sampled_from(TASK_IDS),
        st.just(("rule",)),
        st.integers(0, 3),
        st.sampled_from([None, 1e-6]),
    ),
    st.builds(ev.TaskSkipped, st.sampled_from(TASK_IDS)),
    st.builds(ev.NoticePosted, st.just("something")),
)


def known(state: RunState) -> dict[str, Any]:
    """The devices, classes, tasks and builders that a run's state has."""
    devices = list(state.fleet.words)
    return {
        "devices": {name: state.fleet._classes[name] for name in devices},
        "used": {name: slot.device_class for name, slot in state._measuring.leases.slots.items()},
        "timeouts": {name: state._measuring._timeouts.get(name) for name in devices},
        "classes": {name: {task.task.id for task in tasks} for name, tasks in state._granting.by_class.items()},
        "awaited": state._measuring.patience._awaited,
        "tasks": {
            name: (task.rules or (), task.is_left_out, task.confirmation_trials, task.planned.late, task.is_awaited)
            for name, task in state.tasks.items()
        },
        "builders": state._builds._there,
    }


def hears(state: RunState, plan: RunPlan, happened: Sequence[ev.Event]) -> RunPlan:
    """Tell the state of the events; the plan after them."""
    for event in happened:
        if isinstance(event, ev.SketchesReady | ev.TaskSkipped):
            task = state.tasks.get(event.task_id)
            if task is None or not task.is_awaited:
                continue  # only a task that is part of the run is described, and only once
        state.handle(event, 1.0)
        plan = plan.after(event, 1.0)
    return plan


@examples(300)
@given(st.lists(events, max_size=12), st.lists(events, max_size=6))
def test_a_scheduler_that_starts_later_knows_what_the_one_knows_that_heard_the_events(
    before: list[ev.Event], later: list[ev.Event]
) -> None:
    first = RunState(PLAN, TaskBandit(0))
    plan = hears(first, PLAN, before)
    second = RunState(plan, TaskBandit(0))
    assert known(second) == known(first)
    assert hears(first, plan, later) == hears(second, plan, later)
    assert known(second) == known(first)


def test_the_time_budget_counts_from_the_last_task_of_the_start_that_was_described() -> None:
    a, b = TASKS["server"]
    plan = PLAN.after(ev.SketchesReady(a.id, ("rule",)), 3.0).after(ev.TaskSkipped(b.id), 7.0)
    assert plan.before.budget_from_secs == 7.0
    plan = plan.after(late("orin"), 8.0).after(ev.SketchesReady(TASKS["orin"][0].id, ("rule",)), 9.0)
    assert plan.before.budget_from_secs == 7.0


def test_sketches_that_take_fewer_operations_lower_the_floor() -> None:
    """The plan is made before sketches are known: a convolution at the peak may have one by Winograd's algorithm."""
    task, other = TASKS["server"]
    ready = ev.SketchesReady(task.id, ("direct", "winograd"), 0, 1e-6)
    state = RunState(PLAN, TaskBandit(0))
    state.handle(ready, 0.0)
    planned = {each.task.id: each.floor_secs for each in PLAN.tasks}
    assert state.tasks[task.id].state(8).floor_secs == 1e-6 != planned[task.id]
    assert state.tasks[other.id].state(8).floor_secs == planned[other.id]
    assert {each.task.id: each.floor_secs for each in PLAN.after(ready).tasks} == {**planned, task.id: 1e-6}


def test_what_says_nothing_of_the_plan_changes_nothing() -> None:
    others: tuple[ev.Event, ...] = (
        ev.Tick(),
        ev.NoticePosted("something"),
        ev.RecordsCommitted(()),
        ev.StopRequested(),
    )
    assert functools.reduce(RunPlan.after, others, PLAN) is PLAN


def test_a_class_that_was_refused_leaves_no_task() -> None:
    added = late("orin")
    plan = PLAN.after(ev.ClassAwaited("orin")).after(added)
    assert plan.awaited_classes == frozenset()
    assert plan.without_tasks(added.tasks) == PLAN


def test_restarts_are_kept_for_the_scheduler_that_takes_over() -> None:
    plan = RunPlan("run", (), {}, 1)
    for event in (
        ProcessRestarted("the recorder", ProcessRole.RECORDER),
        ProcessRestarted("searcher 0", ProcessRole.SEARCHER, 2),
        ProcessRestarted("searcher 1", ProcessRole.SEARCHER),
    ):
        plan = plan.after(event)
    state = RunState(plan, TaskBandit(0))
    assert state.progress(0.0).restarts == {"recorder": 1, "searcher": 3}
    state.handle(ProcessRestarted("the recorder", ProcessRole.RECORDER, 2), 1.0)
    assert state.progress(1.0).restarts == {"recorder": 3, "searcher": 3}
    assert [each.text for each in state.progress(1.0).notices] == [
        "the process of the recorder has ended 2 times: another takes its place"
    ]
