"""Processes beside the devices that fail for real: each is named in the progress and begins anew, and nobody else is
blamed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.clients.calls import ask
from devices.builds.builder import BuildWorker
from devices.protocol import BuildRequest, BuildResult
from devices.simulated.simulated import SimulatedBuilder
from fleet_tune.base.domain import Outcome
from fleet_tune.base.errors import BuildersLostError
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import Progress
from policies.runs.events import SketchesReady, StopRequested
from policies.runs.plan import InFlightLimits
from tests.actors.conftest import Fleet, search_task, trials
from tests.actors.processes.test_learner import models_of, within
from tests.actors.scheduling.test_scheduler import process_of, run, until

pytestmark = pytest.mark.timeout(300)


def told(progress: Progress, text: str) -> list[str]:
    return [each.text for each in progress.notices if text in each.text]


def breaks_once(actor: Any, at: Path, method: str) -> None:
    """Have a method of the actor raise the first time that it is called."""
    kind = type(actor)
    works = getattr(kind, method)

    def broken(self: Any, *arguments: Any) -> Any:
        if not at.exists():
            at.touch()
            raise ZeroDivisionError("pages of stack\nthe training is broken")
        return works(self, *arguments)

    setattr(kind, method, broken)


async def test_a_learner_whose_training_raises_is_named_and_trains_again(
    fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    made = fleet(method="bansor", learner=True)
    scheduler = made.start(time_budget_secs=1000.0)
    learner = made.actors["learner"]
    await ask(learner.__ray_call__.remote(partial(breaks_once, at=tmp_path / "broken", method="_train")), 60.0, "break")
    before = await process_of(learner)
    running = asyncio.ensure_future(run(scheduler))
    progress = await until(scheduler, lambda progress: bool(told(progress, "learner")))
    assert told(progress, "learner") == [
        "the learner failed and begins anew: ZeroDivisionError: the training is broken"
    ]

    # Its new process has read the records and trained.
    await within(lambda: models_of(learner), "a model")
    assert await process_of(learner) != before
    progress = await ask(scheduler.progress.remote(), 60.0, "progress")
    assert len(told(progress, "learner")) == 1  # that it begins anew is no failure
    await ask(scheduler.tell.remote(StopRequested()), 10.0, "stop")
    await running


async def test_a_searcher_that_always_fails_over_a_task_ends_that_task(fleet: Callable[..., Fleet]) -> None:
    broken, good = search_task("broken"), search_task("good", extent=4)
    made = fleet(tasks=(broken, good), late=frozenset({broken.task.id}), flow=InFlightLimits(max_lost_proposals=2))
    scheduler = made.start(time_budget_secs=1000.0)
    running = asyncio.ensure_future(run(scheduler))
    # It is said to be described, and is not in the registry.
    await ask(scheduler.tell.remote(SketchesReady(broken.task.id, ("toy",))), 60.0, "described")
    progress = await running
    assert {task.name: task.trials for task in progress.tasks} == {"broken": 0, "good": 18}
    [reason] = [task.finish_reason for task in progress.tasks if task.name == "broken"]
    assert reason == f"its searcher failed 2 times in a row: ValueError: the task {broken.task.id} is not described"
    assert told(progress, "is given up")
    assert told(progress, "searcher of broken")


async def test_a_recorder_that_stands_still_is_named_and_slows_the_run_alone(fleet: Callable[..., Fleet]) -> None:
    made = fleet(tasks=(search_task("large", extent=4096),))
    scheduler = made.start(trials=60)
    recorder = await process_of(made.actors["recorder"])
    running = asyncio.ensure_future(run(scheduler))
    await until(scheduler, lambda progress: progress.trials > 0)
    os.kill(recorder, signal.SIGSTOP)
    try:
        await until(scheduler, lambda progress: bool(told(progress, "the recorder is slow")))
    finally:
        os.kill(recorder, signal.SIGCONT)
    progress = await running
    assert progress.trials == 60
    assert progress.devices == {"device-0": "good"}
    with RecordReader(made.store) as reader:
        assert {event.kind for event in reader.devices.events(100)} <= {"joined", "probe_passed", "leased", "released"}
    assert {record.measurement.outcome for record in trials(made.store)} == {Outcome.OK}


class FailsToStart:
    """A build worker whose child dies at its start, for real, the first ``times`` times; then a simulated one."""

    def __init__(self, times: int) -> None:
        self._times = times
        self._simulated = SimulatedBuilder(seed=99)

    def start(self) -> None:
        """When the first build asks for it."""

    def build(self, request: BuildRequest) -> BuildResult:
        if self._times:
            self._times -= 1
            with BuildWorker(module="no_such_module") as worker:
                return worker.build(request)
        return self._simulated.build(request)

    def close(self) -> None:
        self._times = 0


async def test_a_build_child_that_dies_at_its_start_costs_no_candidate(fleet: Callable[..., Fleet]) -> None:
    made = fleet(make_builder=partial(FailsToStart, 2))
    progress = await run(made.start(trials=40))
    assert Counter(progress.outcomes) == {"ok": 40}
    assert any("No module named no_such_module" in each for each in told(progress, "builder"))


async def test_build_children_that_never_start_end_the_run_with_why(fleet: Callable[..., Fleet]) -> None:
    made = fleet(make_builder=partial(FailsToStart, 1000), flow=InFlightLimits(max_failed_starts=2))
    with pytest.raises(BuildersLostError, match=r"no builder works: the build process did not start: .*no_such_module"):
        await run(made.start(trials=40))
