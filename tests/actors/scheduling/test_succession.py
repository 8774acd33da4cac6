"""What a scheduler that takes the place of a lost one is told, on schedulers that stand in for the process."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from actors.clients.calls import ActorDeadError, ActorLostError
from actors.scheduling import supervisor
from actors.scheduling.supervisor import SchedulerSupervisor
from fleet_tune.base.errors import ClusterError
from fleet_tune.base.results import Notice, Progress
from fleet_tune.base.timeouts import BOARD
from policies.runs import events as ev
from policies.runs.plan import RunPlan
from policies.runs.planned_task import PlannedTask
from tests.helpers.tasks import make_task

TASKS = tuple(make_task(name, "cpu") for name in ("known", "described", "left out", "late"))


def progress(phase: str = "tuning", notices: tuple[Notice, ...] = ()) -> Progress:
    return Progress(phase, 1.0, None, None, 0, 0, {}, 0.0, {}, {}, (), device_changes=7, notices=notices)


class Scheduler:
    """Stands in for a process: ``run`` ends as the test says."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.ends: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.told: list[ev.Event] = []
        self.is_over = False
        self.ended = False
        self.progress_is = progress()

    async def run(self) -> None:
        await self.ends

    async def progress(self) -> Progress:
        return self.progress_is

    async def tell(self, event: ev.Event, _deadline_secs: float = 0.0) -> bool:
        if self.ends.done():
            raise ActorLostError("its process ended")
        self.told.append(event)
        return not (self.is_over and isinstance(event, ev.ClassAdded))

    def end(self) -> None:
        self.ended = True

    def lose(self) -> None:
        self.ends.set_exception(ActorLostError("the scheduler: its process ended"))


class Cluster:
    is_lost = False


class World:
    """A run with one scheduler after the other; ``seq``: of its records."""

    def __init__(self) -> None:
        self.made: list[Scheduler] = []
        self.seq = 0
        rules: tuple[tuple[str, ...] | None, ...] = (("rule",), None, None, None)
        planned = tuple(PlannedTask(task, each, 1e-9) for task, each in zip(TASKS, rules, strict=True))
        plan = RunPlan("run", planned, {"a": "cpu"}, 1)
        self.supervisor = SchedulerSupervisor(plan, cast(Any, self.start), self.last_seq, cast(Any, Cluster()))

    def start(self, plan: RunPlan) -> Scheduler:
        self.made.append(Scheduler(plan))
        return self.made[-1]

    async def last_seq(self) -> int:
        return self.seq

    async def next_one(self) -> Scheduler:
        count = len(self.made)
        self.made[-1].lose()
        async with asyncio.timeout(60.0):
            while len(self.made) == count:
                await asyncio.sleep(0)
        return self.made[-1]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_REST_SECS", 0.0)


async def test_the_next_one_knows_the_tasks_the_time_and_what_people_were_told() -> None:
    world = World()
    running = asyncio.ensure_future(world.supervisor.run())
    await asyncio.sleep(0)
    first = world.made[0]
    assert first.plan.before.secs == 0.0
    await world.supervisor.tell(ev.SketchesReady(TASKS[1].id, ("a", "b"), 3))
    await world.supervisor.tell(ev.TaskSkipped(TASKS[2].id))
    assert first.told == [ev.SketchesReady(TASKS[1].id, ("a", "b"), 3), ev.TaskSkipped(TASKS[2].id)]
    first.progress_is = progress(notices=(Notice(3, 0.5, "something"),))
    await world.supervisor.progress()

    second = await world.next_one()
    assert first.ended
    assert [each.rules for each in second.plan.tasks] == [("rule",), ("a", "b"), (), None]
    assert [each.confirmation_trials for each in second.plan.tasks] == [0, 3, 0, 0]
    before = second.plan.before
    assert before.secs > 0
    assert before.device_changes == 7
    assert [(each.number, each.text) for each in before.notices] == [
        (3, "something"),
        (4, "the process that schedules the run was lost: another goes on (the scheduler: its process ended)"),
    ]
    assert second.told == []
    # It goes on where the other was: what it has not read yet is not shown.
    second.progress_is = progress("starting")
    assert (await world.supervisor.progress()).phase == "tuning"
    await world.supervisor.tell(ev.SketchesReady(TASKS[3].id, ("c",)))
    assert second.told == [ev.SketchesReady(TASKS[3].id, ("c",))]
    second.ends.set_result(None)
    await running


async def test_what_a_lost_one_could_not_be_told_the_next_one_is() -> None:
    world = World()
    running = asyncio.ensure_future(world.supervisor.run())
    await asyncio.sleep(0)
    first = world.made[0]
    first.lose()
    world.supervisor.notice("the process of the recorder has ended", False)
    async with asyncio.timeout(60.0):
        while len(world.made) == 1 or not world.made[-1].told:
            await asyncio.sleep(0)
    assert first.told == []
    assert world.made[-1].told == [ev.NoticePosted("the process of the recorder has ended")]
    world.made[-1].ends.set_result(None)
    await running


async def test_schedulers_that_die_without_a_record_in_between_end_the_run() -> None:
    world = World()
    running = asyncio.ensure_future(world.supervisor.run())
    await asyncio.sleep(0)
    for _ in range(10):
        world.seq += 1  # each has made some
        await world.next_one()
    for _ in range(supervisor._MOST_LOSSES - 2):  # the last one above was the first in a row
        await world.next_one()
    world.made[-1].lose()
    with pytest.raises(ClusterError, match="again and again: the scheduler: its process ended; run the same command"):
        await running


async def test_a_run_that_is_to_stop_gets_no_other_scheduler() -> None:
    world = World()
    running = asyncio.ensure_future(world.supervisor.run())
    await asyncio.sleep(0)
    await world.supervisor.stop()
    world.made[-1].lose()
    await running
    assert len(world.made) == 1
    assert world.made[0].told == [ev.StopRequested()]


async def test_a_run_that_is_to_stop_while_the_recorder_is_asked_gets_no_other_scheduler() -> None:
    world = World()
    asked, answers = asyncio.Event(), asyncio.Event()

    async def last_seq() -> int:
        asked.set()
        await answers.wait()
        return 0

    world.supervisor._last_seq = last_seq
    running = asyncio.ensure_future(world.supervisor.run())
    await asyncio.sleep(0)
    world.made[-1].lose()
    await asked.wait()
    await world.supervisor.stop()
    answers.set()
    await running
    assert len(world.made) == 1


async def test_a_scheduler_that_is_dead_for_ray_is_one_that_another_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def beat(_self: Scheduler) -> None:
        raise ActorDeadError("a sign of life: its process ended")

    monkeypatch.setattr(Scheduler, "beat", beat, raising=False)
    with pytest.raises(ActorLostError) as raised:
        await World().supervisor.beat()
    assert type(raised.value) is ActorLostError


async def test_the_next_one_has_the_builders_and_devices_that_there_are() -> None:
    world = World()
    running = asyncio.ensure_future(world.supervisor.run())
    await asyncio.sleep(0)
    # Number 1 was begun and did not fit, number 2 answers later.
    events = [
        ev.BuildersAdded((3, 4)),
        ev.BuildersAdded((2,)),
        ev.BuildersLeft((0, 3)),
        ev.DeviceAdded("b", timeouts=BOARD),
    ]
    for event in events:
        assert await world.supervisor.tell(event)
    assert world.made[0].told == events
    second = await world.next_one()
    assert set(range(second.plan.builders)) - second.plan.left_builders == {2, 4}
    assert second.plan.devices == {"a": "cpu", "b": ""}
    assert second.plan.timeouts == {"b": BOARD}
    second.ends.set_result(None)
    await running


async def test_the_next_one_has_no_task_of_a_class_that_came_when_the_tuning_was_over() -> None:
    world = World()
    running = asyncio.ensure_future(world.supervisor.run())
    await asyncio.sleep(0)
    added = ev.ClassAdded("orin", (PlannedTask(make_task("late", "orin"), None, 1e-9),))
    world.made[0].is_over = True
    assert not await world.supervisor.tell(added)
    second = await world.next_one()
    assert [each.task.id for each in second.plan.tasks] == [task.id for task in TASKS]
    # One that is lost cannot say that it is over.
    second.lose()
    assert await world.supervisor.tell(added)
    async with asyncio.timeout(60.0):
        while len(world.made) == 2:
            await asyncio.sleep(0)
    assert [each.task.device_class.name for each in world.made[-1].plan.tasks].count("orin") == 1
    world.made[-1].ends.set_result(None)
    await running
