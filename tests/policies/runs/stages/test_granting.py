"""Granting with several searchers, and fleets that grow."""

from __future__ import annotations

from fleet_tune.base.device_state import Admin
from policies.measuring import health
from policies.runs.fleet import Fleet
from policies.runs.plan import InFlightLimits, RunPlan
from policies.runs.planned_task import PlannedTask
from policies.runs.stages.building import BuildStage
from policies.runs.stages.granting import Granting
from policies.runs.stages.pace import Pace
from policies.runs.tasks import TaskTrials
from policies.runs.times.timers import Timers
from policies.search.methods import method_named
from tests.helpers.tasks import make_task


def _never_lost(_device_class: str, _now: float) -> bool:
    return False


def test_a_searcher_that_was_lost_is_asked_one_by_one_and_the_others_are_not() -> None:
    tasks = [make_task("w1", device_class="a"), make_task("w2", device_class="b"), make_task("w3", device_class="a")]
    planned = tuple(PlannedTask(task, ("rule",), 1e-9, searcher=at) for task, at in zip(tasks, (0, 0, 1), strict=True))
    plan = RunPlan("run", planned, {"device-a": "a", "device-b": "b"}, builders=8, flow=InFlightLimits(in_flight=64))
    trials = {each.task.id: TaskTrials(each) for each in planned}
    timers, pace = Timers(), Pace(plan.flow, ["a", "b"])
    granting = Granting(
        plan, trials, method_named("random").make_task_bandit(0), Fleet(plan.devices, "run"), pace, timers, _never_lost
    )
    builds = BuildStage(range(8), plan.flow, timers, lambda _: 60.0)
    first, second, third = (task.id for task in tasks)

    assert {each.task_id for each in granting.start(0.0, builds)} == {first, second, third}
    assert granting.lost(second, 1.0) == 0  # it may have been the other one's fault
    granting.answered(first, 1.0)
    granting.answered(third, 1.0)
    asked = {each.task_id for each in granting.start(10.0, builds)}
    assert third in asked
    # The lost one is asked for first: it would wait for as long as the other class is short of candidates.
    assert second in asked
    assert first not in asked


def test_a_device_that_appears_counts_for_its_class() -> None:
    fleet = Fleet({"old": "a", "new": ""}, "run")
    fleet.restore({}, {"new": (Admin.ACTIVE, "")}, 0.0, 0.0)
    fleet.set_class("new", "a")
    assert fleet.usable_count("a") == 0
    for event in (health.Joined(), health.ProbePassed(1e-3)):
        fleet.happened("new", event, 1.0)
    assert (fleet.usable("a"), fleet.usable_count("a"), fleet.usable_count("")) == (["new"], 1, 0)


def test_searchers_take_turns_where_one_proposal_is_all_that_is_lacking() -> None:
    tasks = [make_task("w1", device_class="a"), make_task("w2", device_class="a")]
    planned = tuple(PlannedTask(task, ("rule",), 1e-9, searcher=at) for at, task in enumerate(tasks))
    plan = RunPlan("run", planned, {"device-a": "a"}, builders=8, flow=InFlightLimits(in_flight=8, min_grant=8))
    trials = {each.task.id: TaskTrials(each) for each in planned}
    timers, pace = Timers(), Pace(plan.flow, ["a"])
    granting = Granting(
        plan, trials, method_named("random").make_task_bandit(0), Fleet(plan.devices, "run"), pace, timers, _never_lost
    )
    builds = BuildStage(range(8), plan.flow, timers, lambda _: 60.0)
    asked = []
    for second in range(4):
        (proposal,) = granting.start(float(second), builds)
        asked.append(proposal.task_id)
        granting.answered(proposal.task_id, second + 0.5)
    assert asked == [tasks[0].id, tasks[1].id] * 2
