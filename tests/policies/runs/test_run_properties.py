"""Whatever happens to a run, in whatever order: nothing is lost, nothing counts twice, every trial ends, no device is
idle while there is work for it, and the flow is bounded. The world checks the last two after every event."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.device_state import Admin
from fleet_tune.base.domain import Limits, Outcome
from policies.runs import events as ev
from policies.runs.plan import InFlightLimits
from policies.runs.tasks import TaskTrials
from tests.helpers.properties import examples
from tests.helpers.run_world import World
from tests.helpers.world_devices import Device, order, task_of

pytestmark = pytest.mark.timeout(300)  # so that it begins early: others wait for what begins last

SECS = st.floats(0.0, 200.0)
CLASSES = ("server", "orin")
SUPPLY = 40
FLOWS = (
    InFlightLimits(),
    InFlightLimits(min_grant=1, max_batch=1, min_batch=1),
    InFlightLimits(max_batch=40, first_batch=40, in_flight=9),
)


@st.composite
def outages(draw: st.DrawFn) -> tuple[tuple[float, float], ...]:
    begins = sorted(draw(st.lists(SECS, max_size=5)))
    return tuple((begin, begin + draw(st.floats(0.1, 40.0))) for begin in begins)


def kills() -> st.SearchStrategy[tuple[float, ...]]:
    return st.lists(SECS, max_size=4).map(tuple)


@st.composite
def devices(draw: st.DrawFn, device_class: str) -> Device:
    times = st.lists(SECS, max_size=3).map(tuple)
    return Device(
        device_class,
        secs=draw(st.sampled_from([0.001, 0.05, 1.0, 6.0])),
        outages=draw(outages()),
        poison=frozenset(draw(st.sets(st.integers(0, SUPPLY - 1), max_size=2))),
        probe_fails=draw(outages()),
        hangs_at=draw(times),
        dies_at=draw(times),
        drifts=draw(outages()),
        hot=draw(outages()),
        killed=frozenset(draw(st.sets(st.integers(0, SUPPLY - 1), max_size=1))),
    )


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, Device]:
    return {
        f"{device_class}-{at}": draw(devices(device_class))
        for device_class in CLASSES
        for at in range(draw(st.integers(1, 3)))
    }


@st.composite
def surroundings(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "tasks": tuple(task_of(each, name) for each in CLASSES for name in ("a", "b")[: draw(st.integers(1, 2))]),
        "supply": SUPPLY,
        "builders": draw(st.integers(1, 4)),
        "build_secs": draw(st.sampled_from([0.001, 0.2, 5.0])),
        "propose_secs": draw(st.sampled_from([0.001, 0.5, 20.0])),
        "build_fails": frozenset(draw(st.sets(st.integers(0, SUPPLY - 1), max_size=4))),
        "builders_lost": draw(st.sampled_from([0.0, 0.1, 0.5])),
        "builds_killed": draw(st.sampled_from([0.0, 0.1, 0.3])),
        "builders_absent": draw(st.sampled_from([0.0, 0.3])),
        "proposals_lost": draw(st.sampled_from([0.0, 0.3])),
        "starts_fail": draw(outages()),
        "builders_that_start": 1,
        "searcher_dies": draw(st.sampled_from([frozenset(), frozenset({"b"})])),
        "searcher_restarts": draw(st.sampled_from([0.0, 0.2])),
        "searcher_killed_at": draw(kills()),
        "recorder_killed_at": draw(kills()),
        "oracle_secs": draw(st.sampled_from([0.0, 30.0])),
        "recorder_secs": draw(st.sampled_from([0.01, 3.0])),
        "stall_secs": draw(st.sampled_from([0.0, 0.1])),
        "check_every_secs": draw(st.sampled_from([0.5, 120.0])),
        "patience_secs": 1e9,  # devices come back, or people bring them
        "flow": draw(st.sampled_from(FLOWS)),
        "seed": draw(st.integers(0, 1000)),
    }


@st.composite
def orders(draw: st.DrawFn, fleet: dict[str, Device]) -> dict[float, ev.Event]:
    """Draw what people do to the devices; in the end all are in use, and hopeless ones are resumed."""
    wanted = st.tuples(SECS, st.sampled_from(sorted(fleet)), st.sampled_from(list(Admin)))
    script: dict[float, ev.Event] = {at: order(name, admin) for at, name, admin in draw(st.lists(wanted, max_size=6))}
    return script | {
        500.0 + 5000.0 * again + at: order(name, Admin.ACTIVE) for again in range(3) for at, name in enumerate(fleet)
    }


def supply_of(world: World) -> int:
    """Candidates that there were to measure: all, but for tasks whose oracle lost too many builders, or over which the
    searcher was lost too often."""
    return sum(task.spent if is_given_up(task) else SUPPLY for task in world.state.tasks.values())


def spent(world: World) -> int:
    """Candidates that were recorded, which :meth:`World.check_end` has counted, or whose processes were killed too
    often."""
    return sum(task.spent for task in world.state.tasks.values())


def is_given_up(task: TaskTrials) -> bool:
    return "does not build" in task.finish_reason or "its searcher failed" in task.finish_reason


@examples(25)
@given(st.data())
def test_every_candidate_of_every_task_is_recorded_once(data: st.DataObject) -> None:
    fleet = data.draw(fleets())
    appear = data.draw(st.dictionaries(st.sampled_from(sorted(fleet)), SECS, max_size=2))
    world = World(fleet, script=data.draw(orders(fleet)), appear=appear, **data.draw(surroundings())).play()
    world.check_end()
    assert spent(world) == supply_of(world)
    for record in world.trials():
        poison = record.measurement.detail.startswith("poison")
        assert not poison or record.measurement.outcome is Outcome.RUN_ERROR
    progress = world.state.progress(world.now)
    assert all(task.finish_reason for task in progress.tasks)
    assert set(progress.queues.values()) == {0}


@examples(25)
@given(st.data(), st.integers(1, 100))
def test_a_limit_is_kept_whatever_goes_wrong(data: st.DataObject, trials: int) -> None:
    fleet = data.draw(fleets())
    limits = Limits(trials=trials)
    world = World(fleet, script=data.draw(orders(fleet)), limits=limits, **data.draw(surroundings())).play()
    world.check_end()
    assert spent(world) == min(trials, supply_of(world))
    not_tried = world.state.progress(world.now).not_tried
    assert len(world.trials()) + sum(each.trials for each in not_tried) == trials
    if not any(is_given_up(task) for task in world.state.tasks.values()):
        skipped = sum(len(task.candidates.given_up) for task in world.state.tasks.values())
        assert len(world.trials()) + skipped == min(trials, SUPPLY * len(world.state.tasks)), not_tried


@examples(25)
@given(st.data(), SECS)
def test_a_run_that_is_stopped_ends_and_the_next_one_completes_it(data: st.DataObject, stopped: float) -> None:
    fleet, chosen = data.draw(fleets()), data.draw(surroundings())
    script = data.draw(orders(fleet)) | {stopped: ev.StopRequested()}
    first = World(fleet, script=script, **chosen).play()
    first.check_end()
    assert max((e.unix_secs for e in first.events if e.kind == "leased"), default=0.0) <= stopped
    states = {name: first.state.fleet[name] for name in fleet}
    second = World(
        fleet,
        script=data.draw(orders(fleet)),
        stored=tuple(first.records),
        device_states=states,
        run_id="second",
        **chosen,
    ).play()
    second.check_end()
    assert spent(second) == supply_of(second)


@examples(25)
@given(st.data(), st.lists(SECS, min_size=1, max_size=4).map(tuple))
def test_a_run_whose_scheduler_is_lost_again_and_again_records_everything_once(
    data: st.DataObject, lost_at: tuple[float, ...]
) -> None:
    fleet, chosen = data.draw(fleets()), data.draw(surroundings())
    appear = data.draw(st.dictionaries(st.sampled_from(sorted(fleet)), SECS, max_size=2))
    late = data.draw(joining(chosen))
    script = data.draw(orders(fleet))
    world = World(fleet, script=script, appear=appear, scheduler_lost_at=lost_at, **chosen, **late).play()
    world.check_end()
    for task in tuned(world):
        assert task.spent == SUPPLY or is_given_up(task)
    progress = world.state.progress(world.now)
    assert progress.new_trials == len(world.trials()) == progress.trials
    assert set(progress.queues.values()) == {0}


@examples(25)
@given(st.data(), st.integers(1, 100), st.lists(SECS, min_size=1, max_size=4).map(tuple))
def test_limits_are_kept_over_the_loss_of_the_scheduler(
    data: st.DataObject, trials: int, lost_at: tuple[float, ...]
) -> None:
    fleet, limits = data.draw(fleets()), Limits(trials=trials)
    chosen = data.draw(surroundings())
    world = World(fleet, script=data.draw(orders(fleet)), limits=limits, scheduler_lost_at=lost_at, **chosen).play()
    world.check_end()
    assert spent(world) == min(trials, supply_of(world))


@examples(20)
@given(st.data(), st.floats(1.0, 300.0), st.lists(SECS, min_size=1, max_size=3).map(tuple))
def test_a_time_budget_goes_on_over_the_loss_of_the_scheduler(
    data: st.DataObject, budget: float, lost_at: tuple[float, ...]
) -> None:
    fleet, chosen = data.draw(fleets()), data.draw(surroundings())
    late, limits = data.draw(joining(chosen)), Limits(time_budget_secs=budget)
    script = data.draw(orders(fleet))
    world = World(fleet, script=script, limits=limits, scheduler_lost_at=lost_at, **chosen, **late).play()
    world.check_end()
    ends = max(late["described_at"].values(), default=0.0) + budget
    told = world.state.progress(world.now).time_budget_secs
    # Tasks may be described before the scheduler has read the records.
    assert told is not None
    assert ends <= told <= ends + 2 * chosen["recorder_secs"]
    assert max((event.unix_secs for event in world.events if event.kind == "leased"), default=0.0) <= told


@st.composite
def joining(draw: st.DrawFn, chosen: dict[str, Any]) -> dict[str, Any]:
    """Draw when the tasks are described, in any order, and which of them turn out to have no sketch."""
    names = [task.id for task in chosen["tasks"]]
    return {
        "described_at": {name: draw(SECS) for name in names if draw(st.booleans())},
        "left_out": frozenset(draw(st.sets(st.sampled_from(names)))),
    }


def tuned(world: World) -> list[TaskTrials]:
    """The tasks that have, or turned out to have, sketches."""
    left_out = world.left_out & world.described_at.keys()
    return [task for task_id, task in world.state.tasks.items() if task_id not in left_out]


@examples(20)
@given(st.data())
def test_tasks_that_are_described_late_are_tuned_or_left_out(data: st.DataObject) -> None:
    fleet, chosen = data.draw(fleets()), data.draw(surroundings())
    late = data.draw(joining(chosen))
    world = World(fleet, script=data.draw(orders(fleet)), **chosen, **late).play()
    world.check_end()
    for task in tuned(world):
        assert task.spent == SUPPLY or is_given_up(task)
        assert task.finish_reason
    assert len(world.trials()) == sum(task.trials for task in tuned(world))
    progress = world.state.progress(world.now)
    assert [each.task_id for each in progress.tasks] == [task.task.id for task in tuned(world)]
    assert all(each.described for each in progress.tasks)


@examples(20)
@given(st.data(), st.integers(1, 100))
def test_a_limit_is_kept_while_tasks_are_described_late(data: st.DataObject, trials: int) -> None:
    fleet, chosen = data.draw(fleets()), data.draw(surroundings())
    late, limits = data.draw(joining(chosen)), Limits(trials=trials)
    world = World(fleet, script=data.draw(orders(fleet)), limits=limits, **chosen, **late).play()
    world.check_end()
    supply = sum(task.spent if is_given_up(task) else SUPPLY for task in tuned(world))
    assert spent(world) == min(trials, supply)


@examples(20)
@given(st.data(), SECS)
def test_a_run_that_is_stopped_while_tasks_are_described_is_completed_by_the_next_one(
    data: st.DataObject, stopped: float
) -> None:
    fleet, chosen = data.draw(fleets()), data.draw(surroundings())
    late = data.draw(joining(chosen))
    script = data.draw(orders(fleet)) | {stopped: ev.StopRequested()}
    first = World(fleet, script=script, **chosen, **late).play()
    first.check_end()
    for each in first.state.progress(first.now).tasks:
        assert each.described or first.described_at[each.task_id] >= stopped
    states = {name: first.state.fleet[name] for name in fleet}
    left_out = late["left_out"] & late["described_at"].keys()
    again = data.draw(joining(chosen))["described_at"] | dict.fromkeys(left_out, 3.0)
    second = World(
        fleet,
        script=data.draw(orders(fleet)),
        stored=tuple(first.records),
        device_states=states,
        run_id="second",
        described_at=again,
        left_out=left_out,
        **chosen,
    ).play()
    second.check_end()
    for task in tuned(second):
        assert task.spent == SUPPLY or is_given_up(task)


@examples(20)
@given(st.data(), st.floats(1.0, 300.0))
def test_a_time_budget_counts_from_when_the_last_task_is_described(data: st.DataObject, budget: float) -> None:
    fleet, chosen = data.draw(fleets()), data.draw(surroundings())
    late, limits = data.draw(joining(chosen)), Limits(time_budget_secs=budget)
    world = World(fleet, script=data.draw(orders(fleet)), limits=limits, **chosen, **late).play()
    world.check_end()
    due, ends = (
        max(late["described_at"].values(), default=0.0) + budget,
        world.state.progress(world.now).time_budget_secs,
    )
    assert ends is not None
    assert due <= ends <= due + world.stall_secs  # what comes while the run is busy is handled after that
    leases = [event.unix_secs for event in world.events if event.kind == "leased"]
    assert max(leases, default=0.0) <= ends
    assert world.now >= 0.95 * budget or all(task.finish_reason for task in tuned(world))


@examples(25)
@given(st.data(), st.floats(1.0, 300.0))
def test_a_time_budget_ends_the_run_whatever_goes_wrong(data: st.DataObject, budget: float) -> None:
    fleet = data.draw(fleets())
    limits = Limits(time_budget_secs=budget)
    world = World(fleet, script=data.draw(orders(fleet)), limits=limits, **data.draw(surroundings())).play()
    world.check_end()
    leases = [event.unix_secs for event in world.events if event.kind == "leased"]
    assert max(leases, default=0.0) <= budget
