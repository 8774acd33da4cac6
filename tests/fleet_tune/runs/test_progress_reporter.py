"""Progress of a run that waits for the device of another run before it can begin, and its expected end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from actors.clients.calls import ActorLostError
from actors.tuning_session import TuningSession
from fleet_tune.base.config.request import run_request
from fleet_tune.base.results import Notice, Progress
from fleet_tune.runs import progress_reporter
from fleet_tune.runs.compile_progress import CompileProgress
from fleet_tune.runs.interruption import beside
from fleet_tune.runs.progress_reporter import ProgressReporter


async def test_a_run_that_waits_for_a_turn_says_again_and_again_for_what_and_for_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_reporter, "PROGRESS_SECS", 0.01)
    seen: list[Progress] = []
    told = asyncio.Event()

    def tell(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 4:
            told.set()

    waiting = "device a: it is the turn of vgg (run 7)"
    reporter = ProgressReporter(run_request("net.onnx", out=tmp_path / "out", store="").limits, tell)
    reporter.announce()
    async with beside(reporter.announce_waiting()):
        reporter.announce(waiting)
        await asyncio.wait_for(told.wait(), 30.0)
        reporter.announce()
    assert [each.doing for each in seen[1:4]] == [waiting] * 3
    assert seen[0].elapsed_secs < seen[1].elapsed_secs < seen[2].elapsed_secs < seen[3].elapsed_secs
    assert seen[-1].doing == "importing the network, starting the devices"


def test_a_callback_that_fails_ends_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Progress] = []

    def tell(progress: Progress) -> None:
        seen.append(progress)
        raise ConnectionError("the server of experiments is away")

    reporter = ProgressReporter(run_request("net.onnx", out=tmp_path / "out", store="").limits, tell)
    reporter.announce()
    reporter.announce()
    assert len(seen) == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_the_expected_end_is_the_budget_and_what_follows_it(tmp_path: Path) -> None:
    seen: list[Progress] = []
    reporter = ProgressReporter(run_request("net.onnx", out=tmp_path / "out", store="").limits, seen.append)
    reporter.started = time.monotonic() + 3600.0  # the run is as old as its tuning
    tuning = Progress("tuning", 30.0, 80.0, None, 1, 1, {"ok": 1}, 1.0, {}, {}, ())
    reporter.update(tuning)
    reporter.finishing_secs = 25.0
    reporter.update(tuning)
    reporter.update(replace(tuning, time_budget_secs=None))
    reporter.update(replace(tuning, time_budget_secs=90.0))  # tasks are still being described
    assert [each.done_secs for each in seen] == [None, 105.0, None, 115.0]
    reporter.show("compiling", CompileProgress(95.0))
    assert seen[-1].done_secs == 115.0


def test_the_clock_of_a_run_goes_on_when_its_tuning_begins(tmp_path: Path) -> None:
    seen: list[Progress] = []
    reporter = ProgressReporter(run_request("net.onnx", out=tmp_path / "out", store="").limits, seen.append)
    reporter.started = time.monotonic() - 30.0
    reporter.announce()
    notice = Notice(1, 0.5, "a line")
    tuning = Progress("tuning", 1.0, 80.0, None, 1, 1, {"ok": 1}, 1.0, {}, {}, (), notices=(notice,))
    reporter.update(tuning)
    reporter.update(replace(tuning, elapsed_secs=2.0, silent={"the recorder": 1.5}, behind={"a": ("other", 1.5)}))
    before, first, second = seen
    assert before.time_budget_secs is None  # it does not count yet
    began = first.elapsed_secs - 1.0
    assert first.elapsed_secs >= before.elapsed_secs >= 30.0
    assert first.time_budget_secs == pytest.approx(began + 80.0)
    assert first.notices[0].at_secs == pytest.approx(began + 0.5)
    assert second.elapsed_secs == pytest.approx(began + 2.0)
    assert second.silent == {"the recorder": pytest.approx(began + 1.5)}
    assert second.behind == {"a": ("other", pytest.approx(began + 1.5))}


async def test_a_snapshot_that_does_not_come_leaves_the_last_one_as_it_is(tmp_path: Path) -> None:
    class Lost:
        async def progress(self) -> Progress:
            raise ActorLostError("the scheduler: its process ended")

    seen: list[Progress] = []
    reporter = ProgressReporter(run_request("net.onnx", out=tmp_path / "out", store="").limits, seen.append)
    reporter.started = time.monotonic() - 30.0
    reporter.update(Progress("tuning", 1.0, 80.0, None, 1, 1, {"ok": 1}, 1.0, {}, {}, ()))
    last = reporter.last
    await reporter.report(cast("TuningSession", Lost()))
    assert reporter.last is last
    assert len(seen) == 1
