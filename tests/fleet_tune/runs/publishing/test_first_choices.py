"""First choices for tasks without a record when their network is compiled."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devices.networks.network import Array
from devices.protocol import BuildRequest
from fleet_tune.base.config.fleet_file import DeviceConfig
from fleet_tune.base.domain import Measurement, Outcome
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import FallbackKernel
from fleet_tune.runs.compile_progress import CompileProgress
from fleet_tune.runs.publishing.first_choices import FirstChoices
from tests.helpers.compiling import Example, Faked, Told

pytestmark = pytest.mark.usefixtures("networks_run_here")


@pytest.mark.parametrize("described", [True, False], ids=["described", "not described"])
def test_tasks_without_a_record_get_the_analyzers_first_choice(
    example: Example, tmp_path: Path, described: bool
) -> None:
    records = example.store(tmp_path / "records.db", [], [], [])
    by_id = {entry.task.id: entry for entry in example.entries}
    if not described:  # of a run that had no trial
        by_id = {task_id: dataclasses.replace(entry, sketches=()) for task_id, entry in by_id.items()}
    progress = Told()
    device = DeviceConfig(name="local", threads=2)
    supply = FirstChoices(by_id, device, records, tmp_path / "artifacts", seed=0, progress=progress)
    result = example.built(records, Faked(example.network), suppliers={"cpu": supply}, progress=progress)
    assert not progress.notices
    first, last = progress.all.index("compiling the network with 3 tuned of 3 tasks"), len(progress.all)
    choices = progress.all[1:first]
    assert described or choices.pop(0) == "describing 3 tasks that need a kernel after all"
    assert {each.split()[0] for each in choices} == {"building", "measuring"}
    for task in example.tasks:
        assert any(task.workload.name in each for each in choices)
    assert choices[-1].endswith("(3 of 3 without a record)")
    assert progress.all[first + 1] == "comparing the network with its framework"
    assert "timing the kernels in the network" in progress.all[first:last]
    assert {each.used for each in result.fallbacks} == {FallbackKernel.FIRST_CHOICE}
    assert len(result.fallbacks) == len(example.tasks)
    error, manifest = example.published(tmp_path)
    example.check_times(result, manifest)
    assert error < 1e-5
    assert all(entry["best_secs"] > 0 for entry in manifest["tasks"])
    with RecordReader(records) as reader:
        assert all(reader.best(task.id) is not None for task in example.tasks), "a run that resumes knows them"


class Released(Faked):
    """A board, whose server has one client at a time."""

    is_free = False

    def outputs(self, folder: Path) -> tuple[Array, ...]:
        self.is_free = False
        return super().outputs(folder)

    def release(self) -> None:
        self.is_free = True


def test_the_device_is_free_for_the_first_choices(example: Example, tmp_path: Path) -> None:
    board, found = Released(example.network), []
    records = example.store(tmp_path / "records.db", [], [], [])
    example.built(records, board, suppliers={"cpu": lambda _: found.append(board.is_free)})
    assert found == [True]


def test_a_device_that_measures_none_is_told(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Measurement(Outcome.DEVICE_LOST, detail="the server has another client")
    device: Any = SimpleNamespace(add_oracle=lambda _: None, measure=lambda _: lost)
    monkeypatch.setattr("fleet_tune.runs.publishing.first_choices.opened", lambda *_: contextlib.nullcontext(device))
    records = example.store(tmp_path / "records.db", [], [], [])
    entry, progress = example.entries[0], Told()
    config = DeviceConfig(name="local", threads=2)
    FirstChoices({entry.task.id: entry}, config, records, tmp_path, seed=0, progress=progress)([entry.task.id])
    told = {notice.text for notice in progress.notices}
    assert told == {f"no first choice for {entry.task.workload.name}: the server has another client"}
    with RecordReader(records) as reader:
        assert not list(reader)


def test_a_fault_of_the_first_choices_leaves_the_tasks_as_they_are(
    example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    records = example.store(tmp_path / "records.db", [], [], [])
    by_id = {entry.task.id: entry for entry in example.entries}
    device = DeviceConfig(name="local", threads=2)
    FirstChoices(by_id, device, records, tmp_path / "artifacts", seed=0, budget_secs=0.0)(list(by_id))
    monkeypatch.setattr("fleet_tune.runs.publishing.first_choices.opened", refuse)
    progress = CompileProgress()
    FirstChoices(by_id, device, records, tmp_path / "artifacts", seed=0, progress=progress)(list(by_id))
    [notice] = progress.notices
    assert notice.text == "no first choices for 3 tasks: OSError: [Errno 28] No space left on device"
    with RecordReader(records) as reader:
        assert not list(reader)


def test_first_choices_end_with_their_time(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that the end of the time cuts short is no record, and none is begun after it."""
    asked: list[float] = []

    def build(_: Any, request: BuildRequest) -> Measurement:
        asked.append(request.timeout_secs)
        time.sleep(request.timeout_secs)
        return Measurement(Outcome.BUILD_TIMEOUT)

    monkeypatch.setattr("devices.builds.builder.BuildWorker.build", build)
    records = example.store(tmp_path / "records.db", [], [], [])
    by_id = {entry.task.id: entry for entry in example.entries}
    device = DeviceConfig(name="local", threads=2)
    FirstChoices(by_id, device, records, tmp_path / "artifacts", seed=0, budget_secs=2.0)(list(by_id))
    assert all(secs <= 2.0 for secs in asked)
    with RecordReader(records) as reader:
        assert not list(reader)
