"""The scheduler with its real actors around simulated hosts: budgets, resume, failures as values, lost processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import ray

from actors.clients.calls import ask
from devices.simulated.simulated import Faults
from fleet_tune.base.domain import Outcome
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import Progress
from policies.runs.events import StopRequested, TaskSkipped
from tests.actors.conftest import Fleet, search_task, trials

DEADLINE_SECS = 120.0


async def run(scheduler: Any) -> Progress:
    await ask(scheduler.run.remote(), DEADLINE_SECS, "run")
    return await ask(scheduler.progress.remote(), 60.0, "progress")


async def until(scheduler: Any, condition: Callable[[Progress], bool]) -> Progress:
    deadline = time.monotonic() + DEADLINE_SECS
    while time.monotonic() < deadline:
        progress = await ask(scheduler.progress.remote(), 60.0, "progress")
        if condition(progress):
            return progress
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {DEADLINE_SECS:g} s: {progress}")


async def process_of(actor: Any) -> int:
    """Process id of an actor, whatever its class."""
    return await ask(actor.__ray_call__.remote(lambda _: os.getpid()), 30.0, "pid")


async def test_the_trial_limit_is_kept_exactly_and_other_runs_resume_and_measure_nothing_twice(
    fleet: Callable[..., Fleet],
) -> None:
    first = fleet(run_id="one", builders=2)
    progress = await run(first.start(trials=40))
    records = trials(first.store)
    assert progress.trials == progress.new_trials == len(records) == 40
    assert len({record.candidate.id for record in records}) == 40
    assert set(progress.queues.values()) == {0}
    for task in progress.tasks:
        reader = RecordReader(first.store)
        best = reader.best(task.task_id)
        assert best is not None
        assert task.best_secs == reader.shown_secs(best)
    first.stop()

    second = fleet(run_id="two")
    progress = await run(second.start(trials=70))
    records = trials(second.store)
    assert Counter(record.run_id for record in records) == {"one": 40, "two": 30}
    assert len({record.candidate.id for record in records}) == 70
    assert progress.new_trials == 30
    second.stop()

    # The limit is used up.
    assert (await run(fleet(run_id="three").start(trials=70))).new_trials == 0


async def test_a_task_that_is_described_late_joins_with_its_records_and_nothing_is_measured_twice(
    fleet: Callable[..., Fleet],
) -> None:
    early, late = search_task("early"), search_task("late", weight=3)
    first = fleet(run_id="one", tasks=(early, late))
    await run(first.start(trials=40))
    first.stop()
    before = Counter(record.task_id for record in trials(first.store))
    assert before[late.task.id] > 0

    # Its records come to the searcher and to the learner, which do not know it yet.
    never = search_task("never")
    made = fleet(
        run_id="two",
        tasks=(early, late, never),
        late=frozenset({late.task.id, never.task.id}),
        method="fleet:boosted-invariant",
        learner=True,
    )
    scheduler = made.start(trials=120)
    running = asyncio.ensure_future(run(scheduler))
    # An even share of 40 is kept for each that is late.
    kept = 40 - before[late.task.id] + 40
    progress = await until(scheduler, lambda progress: progress.trials == 120 - kept)
    shown = {task.task_id: (task.described, task.sketches, task.trials) for task in progress.tasks}
    assert shown[late.task.id] == (False, 0, before[late.task.id])
    assert shown[never.task.id] == (False, 0, 0)
    await made.describe(late)
    await ask(scheduler.tell.remote(TaskSkipped(never.task.id)), 60.0, "leave out")
    progress = await running
    assert {task.task_id: task.described for task in progress.tasks} == {early.task.id: True, late.task.id: True}
    records = trials(made.store)
    assert progress.trials == len(records) == len({record.candidate.id for record in records}) == 120
    assert sum(record.task_id == late.task.id for record in records) > before[late.task.id]


async def test_every_task_gets_its_trials_and_no_more(fleet: Callable[..., Fleet]) -> None:
    # 18 candidates are all that "small" has: the others do not wait for it.
    tasks = (search_task("a"), search_task("small", extent=4), search_task("b", weight=3))
    first = fleet(run_id="one", tasks=tasks)
    progress = await run(first.start(per_task=12, trials=30))
    first.stop()
    assert progress.trials == 30
    second = fleet(run_id="two", tasks=tasks)
    scheduler = second.start(per_task=25)
    progress = await run(scheduler)
    assert {task.name: task.trials for task in progress.tasks} == {"a": 25, "small": 18, "b": 25}
    assert progress.trial_limit == 75
    assert len({record.candidate.id for record in RecordReader(second.store)}) == 68


async def test_stop_ends_the_run_and_keeps_what_is_stored(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    scheduler = made.start(time_budget_secs=1000.0)
    running = asyncio.ensure_future(run(scheduler))
    seen = await until(scheduler, lambda progress: progress.trials > 0)
    await ask(scheduler.tell.remote(StopRequested()), 10.0, "stop")
    progress = await running
    assert progress.trials >= seen.trials
    assert len(trials(made.store)) == progress.trials


async def test_failures_are_recorded_as_such(fleet: Callable[..., Fleet]) -> None:
    made = fleet(
        build_faults=Faults(rates={Outcome.BUILD_ERROR: 0.2, Outcome.BUILD_TIMEOUT: 0.1}),
        device_faults=(Faults(rates={Outcome.RUN_ERROR: 0.2, Outcome.WRONG_OUTPUT: 0.5}),),
    )
    progress = await run(made.start(trials=150))
    assert sum(progress.outcomes.values()) == 150
    for outcome in (Outcome.OK, Outcome.BUILD_ERROR, Outcome.BUILD_TIMEOUT, Outcome.RUN_ERROR, Outcome.WRONG_OUTPUT):
        assert progress.outcomes[outcome.value] > 0
    # A wrong output is never an incumbent.
    wrong = {r.candidate.id for r in RecordReader(made.store) if r.measurement.outcome is Outcome.WRONG_OUTPUT}
    for entry in made.tasks:
        best = RecordReader(made.store).best(entry.task.id)
        assert best is not None
        assert best.candidate.id not in wrong


async def test_the_run_outlives_killed_processes(fleet: Callable[..., Fleet]) -> None:
    # Two devices, and a space that 400 trials do not exhaust.
    made = fleet(tasks=(search_task("large", extent=4096),), device_faults=(Faults(), Faults()), builders=2)
    scheduler = made.start(trials=400)
    running = asyncio.ensure_future(run(scheduler))
    for at, victim in enumerate(("builder-0", "device-0", "searcher")):
        await until(scheduler, lambda progress, least=10 + 100 * at: progress.trials > least)
        os.kill(await process_of(made.actors[victim]), signal.SIGKILL)
    progress = await running
    assert progress.trials == 400
    assert len({record.candidate.id for record in RecordReader(made.store)}) == 400


def jumps(_actor: Any) -> None:
    """From now on the wall clock of this process jumps by a day or back by a year, whenever it is read."""
    real, leaps = time.time, itertools.cycle((0.0, 86_400.0, -365 * 86_400.0))
    time.time = lambda: real() + next(leaps)


async def test_candidates_of_a_lost_device_are_tried_elsewhere_whatever_the_clocks_say(
    fleet: Callable[..., Fleet],
) -> None:
    # The first device is gone in its first batch, of three; the second one finishes the work.
    made = fleet(device_faults=(Faults(lost_after=2), Faults()), learner=True, method="bansor")
    scheduler = made.start(trials=60)
    for actor in made.actors.values():
        await ask(actor.__ray_call__.remote(jumps), 60.0, "a clock that jumps")
    progress = await run(scheduler)
    assert progress.trials == 60
    assert progress.elapsed_secs < DEADLINE_SECS
    assert progress.devices == {"device-0": "lost", "device-1": "good"}
    with RecordReader(made.store) as reader:
        assert Counter(record.device_id for record in reader)["device-1"] >= 50
        stamps = [record.unix_secs for record in reader]
        assert max(stamps) - min(stamps) > 86_400.0
        assert all(event.state.lease.epoch > 0 for event in reader.devices.states().values())


async def test_a_lost_recorder_ends_the_run_with_its_error(fleet: Callable[..., Fleet]) -> None:
    made = fleet()
    scheduler = made.start(time_budget_secs=1000.0)
    running = asyncio.ensure_future(run(scheduler))
    seen = await until(scheduler, lambda progress: progress.trials > 0)
    ray.kill(made.actors["recorder"], no_restart=True)
    with pytest.raises(Exception, match="record"):
        await running
    # What was acknowledged is in the file.
    assert len(list(RecordReader(made.store))) >= seen.trials
