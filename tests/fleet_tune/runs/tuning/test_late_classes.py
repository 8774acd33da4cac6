"""A device class that comes while a run tunes, with faults."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from actors.tuning_session import TuningSession
from devices.describing.describer import DescriberStartError
from devices.networks.tasks.lowering import LoweredNetwork
from devices.simulated.simulated import SIMULATED_CPU
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.config.request import RunRequest, run_request
from fleet_tune.base.domain import Fingerprint
from fleet_tune.base.errors import NetworkError
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Sketch, Tile
from fleet_tune.runs.callbacks.shared_store import SharedStore
from fleet_tune.runs.interruption import Interruption, beside
from fleet_tune.runs.prepared import Prepared
from fleet_tune.runs.preparing import device_classes, run_store
from fleet_tune.runs.preparing.ready_tasks import ReadyTask, ReadyTasks
from fleet_tune.runs.progress_reporter import ProgressReporter
from fleet_tune.runs.run_callback import OngoingTuning
from fleet_tune.runs.tuning import late_classes
from fleet_tune.runs.tuning.late_classes import LateClasses
from fleet_tune.runs.tuning.task_feed import TaskFeed
from tests.helpers.devices import make_fingerprint
from tests.helpers.tasks import make_task

BOARD = DeviceConfig(name="board", connect="10.0.0.1:9090")
TASKS = tuple(make_task(name, "orin") for name in ("a", "b"))
ENTRIES = tuple(SearchTask(task, (), SIMULATED_CPU) for task in TASKS)
PRINT = make_fingerprint(TASKS[0].device_class, SIMULATED_CPU)


class Session:
    """Stands in for a session to which one device comes. ``is_over``: its tuning."""

    window = None
    store_writer = None

    def __init__(self, is_over: bool = False) -> None:
        self.is_over = is_over
        self.done: list[tuple[str, ...]] = []
        self.told: list[str] = []
        self.added: tuple[SearchTask, ...] = ()
        self._came = False

    async def next_class(self) -> tuple[DeviceConfig, Fingerprint]:
        if self._came:
            await asyncio.Event().wait()
        self._came = True
        return BOARD, PRINT

    async def add_class(self, tasks: tuple[SearchTask, ...], _settled: dict[str, str]) -> bool:
        self.added = tasks
        return not self.is_over

    async def refuse_class(self, name: str, reason: str) -> None:
        self.done.append(("refused", name, reason))

    def notice(self, text: str, _well: bool) -> None:
        self.told.append(text)

    async def start_task(self, entry: SearchTask) -> None:
        self.done.append(("joined", entry.task.id))

    async def skip_task(self, task_id: str) -> None:
        self.done.append(("skipped", task_id))

    async def until_done(self, count: int) -> None:
        async with asyncio.timeout(60.0):
            while len(self.done) < count:
                await asyncio.sleep(0.01)


def alone() -> Prepared:
    """The network as it is prepared for the class that comes."""
    lowered = LoweredNetwork("net", "", TASKS[0].device_class, None, TASKS, {}, (), ())
    return Prepared(cast(Any, None), {"orin": PRINT}, {"orin": lowered}, frozenset(), {"orin": (BOARD,)})


class Tuning:
    """Stands in for the tuning that the class joins."""

    prepared = cast(Prepared, None)

    def __init__(self, session: Session) -> None:
        self.session = session
        self.classes: list[Prepared] = []

    def add_classes(self, late: Prepared) -> None:
        self.classes.append(late)


@pytest.fixture
def request_(tmp_path: Path) -> RunRequest:
    return run_request("net.onnx", out=tmp_path / "out", store="")


@contextlib.asynccontextmanager
async def added(request: RunRequest, session: Session) -> AsyncIterator[Tuning]:
    """The run takes in who comes."""
    tuning, reporter = Tuning(session), ProgressReporter(request.limits, None)
    store = SharedStore(request, "run", reporter, Interruption())
    late = LateClasses(request, "run", store, reporter)
    async with beside(late.during(cast(OngoingTuning, cast(Any, tuning)))):
        yield tuning


@pytest.fixture(autouse=True)
def without_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_classes, "_lowering_process", lambda _window: contextlib.nullcontext())
    monkeypatch.setattr(run_store, "introduce", lambda *_: None)


def comes(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    """Preparing the network for a class ends so."""

    def prepare(*_: object) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(late_classes, "prepare_late_class", prepare)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NetworkError("net cannot be lowered: it is too wide", "simplify it"), "net cannot be lowered: it is too wide"),
        (RuntimeError("many\nlines"), "RuntimeError: lines"),
    ],
)
async def test_a_class_for_which_the_network_cannot_be_prepared_is_refused_in_one_line(
    error: Exception, reason: str, request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    comes(monkeypatch, error)
    session = Session()
    async with added(request_, session) as tuning:
        await session.until_done(1)
    [(what, name, told)] = session.done
    assert (what, name) == ("refused", "orin")
    assert reason in told
    assert "\n" not in told
    assert not tuning.classes


async def test_a_class_that_cannot_even_be_refused_is_told_and_the_next_one_is_welcome(
    request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Twice(Session):
        """Two classes come, and something is wrong with the session when the first one does."""

        async def next_class(self) -> tuple[DeviceConfig, Fingerprint]:
            self._came = len(self.told) + len(self.done) > 1
            return await super().next_class()

        async def refuse_class(self, name: str, reason: str) -> None:
            if not self.told:
                raise KeyError(name)
            await super().refuse_class(name, reason)

    comes(monkeypatch, NetworkError("it is too wide", "simplify it"))
    session = Twice()
    async with added(request_, session):
        await session.until_done(1)
    assert session.told == ["class orin does not join this run: it is too wide (KeyError: 'orin')"]
    assert session.done == [("refused", "orin", "it is too wide")]


async def test_a_class_that_comes_when_the_tuning_is_over_is_none_of_the_run(
    request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    comes(monkeypatch, alone())
    session = Session(is_over=True)
    async with added(request_, session) as tuning:
        await session.until_done(1)
    assert [entry.task for entry in session.added] == list(TASKS)
    assert session.done == [("refused", "orin", "the tuning was over before the network was prepared for it")]
    assert not tuning.classes


class Coming:
    """Stands in for tasks that are described one after the other, until something is in the way."""

    def __init__(self, error: Exception, *ready: ReadyTask) -> None:
        self._error = error
        self._ready = list(ready)

    def begin(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __iter__(self) -> Coming:
        return self

    def __next__(self) -> ReadyTask:
        if not self._ready:
            raise self._error
        return self._ready.pop(0)


async def join_late(request: RunRequest, session: Session) -> TaskFeed:
    feed = TaskFeed(alone(), request.fleet, None, is_required=False)
    feed.start(cast(TuningSession, cast(Any, session)))
    await feed.wait()
    return feed


@pytest.mark.parametrize(
    "error",
    [
        DescriberStartError("the process that describes sketches did not start: no memory", "free some"),
        OSError("did not start: no memory"),
    ],
)
async def test_tasks_of_a_class_that_cannot_be_described_are_left_out_and_told(
    error: Exception, request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    monkeypatch.setattr(device_classes, "describe_tasks", lambda *_: Coming(error, ReadyTask(ENTRIES[0])))
    feed = await join_late(request_, session)
    assert session.done == [("skipped", TASKS[0].id), ("skipped", TASKS[1].id)]
    [missing] = feed.ready[1].left_out
    assert (missing.what, missing.task, missing.device_class) == ("task", "b", "orin")
    assert "did not start: no memory" in missing.reason
    [told] = session.told
    assert "tasks of class orin are skipped in this run" in told
    assert "did not start: no memory" in told


async def test_tasks_of_which_no_process_can_begin_to_describe_one_are_left_out(
    request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe_tasks(*_: object) -> ReadyTasks:
        raise RuntimeError("can't start new thread")

    session = Session()
    monkeypatch.setattr(device_classes, "describe_tasks", describe_tasks)
    await join_late(request_, session)
    assert session.done == [("skipped", TASKS[0].id), ("skipped", TASKS[1].id)]


async def test_a_task_that_the_searchers_cannot_be_given_is_left_out(
    request_: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Session):
        async def start_task(self, _entry: SearchTask) -> None:
            raise OSError("no space left on device")

    sketch = Sketch(0, "tiles", "[]", (Tile(4, 2, 64),), ())
    session = Full()
    ready = ReadyTask(SearchTask(TASKS[0], (sketch,), SIMULATED_CPU))
    monkeypatch.setattr(device_classes, "describe_tasks", lambda *_: Coming(OSError(), ready))
    feed = await join_late(request_, session)
    assert session.done == [("skipped", TASKS[0].id), ("skipped", TASKS[1].id)]
    assert [len(each.left_out) for each in feed.ready] == [1, 1]
