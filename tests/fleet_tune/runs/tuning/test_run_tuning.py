"""The tuning of a run with a session that stands in for the actors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from fleet_tune.base.config.request import run_request
from fleet_tune.base.domain import Record
from fleet_tune.base.results import Progress
from fleet_tune.runs.callbacks.shared_store import SharedStore
from fleet_tune.runs.context import RunContext
from fleet_tune.runs.interruption import Interruption, RunInterruptedError
from fleet_tune.runs.progress_reporter import ProgressReporter
from fleet_tune.runs.run_callback import OngoingTuning, RunCallback
from fleet_tune.runs.tuning.task_feed import TaskFeed
from fleet_tune.runs.tuning.tuning import RunTuning
from tests.helpers.records import make_record, ok
from tests.helpers.tasks import make_candidate, make_task

RECORDS = [make_record(make_candidate(make_task("a"), number), ok(1e-3)) for number in range(3)]


class Session:
    """A session that has some records and then ends."""

    def __init__(self) -> None:
        self.begun = False
        self.told: list[str] = []

    def begin(self) -> None:
        self.begun = True

    async def next_class(self) -> None:
        await asyncio.Event().wait()

    async def records(self, cursor: int, traces: bool) -> AsyncIterator[Record | None]:
        assert (cursor, traces) == (7, False)
        for record in RECORDS:
            yield record
            await asyncio.sleep(0)
        yield None

    async def progress(self) -> Progress:
        return Progress("tuning", 1.0, None, None, 3, 3, {}, 0.0, {}, {}, ())

    async def last_progress(self) -> Progress:
        return await self.progress()

    def notice(self, text: str, _well: bool) -> None:
        self.told.append(text)


class Feed:
    """No task is described."""

    def start(self, _session: object) -> None: ...

    def check(self) -> None: ...


class Recording(RunCallback):
    """Keeps what it is told; :meth:`during` fails."""

    failure = "nothing is kept any more"

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.phases: list[str] = []

    async def during(self, _tuning: OngoingTuning) -> None:
        raise RuntimeError("no space left")

    def on_record(self, record: Record) -> None:
        self.records.append(record)

    def on_progress(self, progress: Progress) -> None:
        self.phases.append(progress.phase)


def tuning_with(folder: Path, callback: RunCallback) -> tuple[RunTuning, Session, Interruption]:
    request, interruption = run_request("net.onnx", out=folder / "out", store=""), Interruption()
    reporter = ProgressReporter(request.limits, None, [callback])
    store = SharedStore(request, "run", reporter, interruption)
    context = RunContext(request, "run", interruption, reporter, store, (callback,))
    session: Any = Session()
    tuning = RunTuning(context, cast(Any, None), session, cast(Any, None), cast(TaskFeed, Feed()))
    return tuning, session, interruption


async def test_every_record_is_handed_on_though_a_callback_fails(tmp_path: Path) -> None:
    callback, handed = Recording(), list[Record]()

    async def on_record(record: Record) -> None:
        handed.append(record)

    tuning, session, _ = tuning_with(tmp_path, callback)
    await tuning.run(7, on_record, traces=False)
    assert handed == callback.records == RECORDS
    assert set(callback.phases) == {"tuning"}
    assert session.told == ["nothing is kept any more: RuntimeError: no space left"]


async def test_a_signal_before_the_tuning_leaves_a_session_that_has_not_begun(tmp_path: Path) -> None:
    tuning, session, interruption = tuning_with(tmp_path, RunCallback())
    interruption._event.set()
    assert tuning.is_interrupted
    with pytest.raises(RunInterruptedError):
        await tuning.run(7, None, traces=False)
    assert not session.begun
