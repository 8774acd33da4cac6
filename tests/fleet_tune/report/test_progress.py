from __future__ import annotations

import dataclasses
import io
import math
import threading
import time
from datetime import UTC, datetime

import pytest
from rich.console import Console

from fleet_tune.base.activity import ACTIVITY
from fleet_tune.base.results import Notice, Progress, TaskProgress
from fleet_tune.report import progress
from fleet_tune.report.progress import ProgressView, end_line, progress_line

TASKS = tuple(
    TaskProgress(f"h{i}@zen5", f"task{i:02d}", "zen5", 1, 2e9, 2, 8, 1e-3, finished=i < 3, best_rule="rule")
    for i in range(30)
)
PROGRESS = Progress(
    phase="tuning",
    elapsed_secs=75.0,
    time_budget_secs=300.0,
    trial_limit=None,
    trials=240,
    new_trials=200,
    outcomes={"ok": 230, "run_error": 10},
    records_per_sec=3.25,
    queues={"build": 4, "measure": 2},
    devices={"local": "good", "board": "lost"},
    tasks=TASKS,
)


def test_a_snapshot_in_one_line() -> None:
    assert progress_line(PROGRESS) == (
        "1:15 tuning, 240 trials (230 ok, 10 run error), 3.2/s, network 30.00 ms on zen5, 3:45 left"
    )
    unmeasured = [dataclasses.replace(each, best_secs=math.inf) for each in TASKS]
    small, large = (*unmeasured[:1], *TASKS[1:]), (*unmeasured[:2], *TASKS[2:])  # of 30 tasks of the same size
    assert "29.00 ms on zen5 without 1 small task," in progress_line(dataclasses.replace(PROGRESS, tasks=small))
    assert "2 of 30 tasks without a result on zen5" in progress_line(dataclasses.replace(PROGRESS, tasks=large))
    limited = dataclasses.replace(PROGRESS, trial_limit=250)
    assert progress_line(limited).endswith("3:45 left or 10 trials left")
    free = dataclasses.replace(PROGRESS, time_budget_secs=None, trials=0, outcomes={}, tasks=())
    assert progress_line(free) == "1:15 tuning, no trials, 3.2/s, no tasks"


def test_the_end_is_told_once_the_budget_counts_and_then_how_far_it_is() -> None:
    ending = dataclasses.replace(PROGRESS, done_secs=345.0)
    assert progress_line(ending).endswith("3:45 left (done in about 4:30)")
    compiling = dataclasses.replace(ending, phase="compiling", doing="timing the network", elapsed_secs=325.0)
    assert progress_line(compiling) == "5:25 compiling: timing the network (done in about 0:20)"
    assert progress_line(dataclasses.replace(compiling, elapsed_secs=350.0)) == "5:50 compiling: timing the network"
    now = datetime(2026, 11, 28, 14, 0, 0, tzinfo=UTC)
    assert end_line(ending, now) == "tunes until 14:03:45, and is done at about 14:04:30"
    console = Console(file=io.StringIO(), width=100)
    view = ProgressView(console, "net")
    with console.capture() as capture:
        for snapshot in (PROGRESS, ending, ending):
            view.update(snapshot)
    assert capture.get().count("is done at about") == 1


def test_the_panel_has_the_curve_and_devices_that_are_slower_than_usual() -> None:
    console = Console(file=io.StringIO(), width=100, height=24, force_terminal=True, color_system=None)
    view = ProgressView(console, "net")
    for number, secs in enumerate((4e-3, 4e-3, 2e-3, 1e-3)):
        tasks = (dataclasses.replace(TASKS[0], best_secs=secs),)
        vitals = {"local": {"speed": 0.8}, "board": {"speed": 1.01}}
        view.update(dataclasses.replace(PROGRESS, elapsed_secs=10.0 * number, tasks=tasks, vitals=vitals))
    with console.capture() as capture:
        console.print(view._panel)
    text = capture.get()
    assert "local good at 80% of its speed" in text
    assert "board lost at" not in text
    [line] = [line for line in text.splitlines() if "█" in line]
    steps = line.strip()
    assert steps[0] == "█"
    assert steps[-1] == "▃"  # a quarter of the highest


def test_what_bounds_the_run_is_shown() -> None:
    bound = dataclasses.replace(PROGRESS, device_time={"zen5": {"measure": 0.42, "build": 0.5, "search": 0.08}})
    said = "builds on zen5 (devices measure 42% of the time)"
    assert f"3.2/s, network 30.00 ms on zen5, limited by {said}, 3:45 left" in progress_line(bound)
    console = Console(file=io.StringIO(), width=100, height=24, force_terminal=True, color_system=None)
    view = ProgressView(console, "net")
    view.update(bound)
    with console.capture() as capture:
        console.print(view._panel)
    lines = capture.get().splitlines()
    assert len(lines) <= 24
    assert any("limited by" in line and said in line for line in lines)


def test_processes_without_a_sign_of_life_are_shown_with_how_long() -> None:
    silent = dataclasses.replace(PROGRESS, silent={"the recorder": 63.0, "builder 1": 5.0})
    said = "the recorder for 0:12, builder 1 for 1:10"
    assert f", without a sign of life: {said}, " in progress_line(silent)
    console = Console(file=io.StringIO(), width=100, height=24, force_terminal=True, color_system=None)
    view = ProgressView(console, "net")
    view.update(silent)
    with console.capture() as capture:
        console.print(view._panel)
    assert any("silent" in line and said in line for line in capture.get().splitlines())


def test_whose_turn_a_device_is_is_shown_with_how_long_the_run_waits() -> None:
    behind = dataclasses.replace(PROGRESS, behind={"board": ("net (run 7)", 63.0)})
    said = "device board for net (run 7), 0:12 so far"
    assert f", waits: {said}, " in progress_line(behind)
    console = Console(file=io.StringIO(), width=100, height=24, force_terminal=True, color_system=None)
    view = ProgressView(console, "net")
    view.update(behind)
    with console.capture() as capture:
        console.print(view._panel)
    assert any("waits" in line and said in line for line in capture.get().splitlines())


def test_without_a_terminal_lines_come_every_five_seconds_and_with_each_phase(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("fleet_tune.report.progress.time.monotonic", lambda: now)
    output = io.StringIO()
    with ProgressView(Console(file=output, width=40), "net[1]") as view:
        assert not output.getvalue(), "a run that is refused has not begun"
        doing = "importing the network, starting the devices"
        view.update(dataclasses.replace(PROGRESS, phase="starting", elapsed_secs=0.0, doing=doing))
        now = 105.0
        for elapsed in range(12):
            now = 105.0 + elapsed
            phase = "starting" if elapsed < 2 else "tuning"
            view.update(dataclasses.replace(PROGRESS, phase=phase, elapsed_secs=float(elapsed)))
    lines = output.getvalue().splitlines()
    assert lines[0] == "net[1]: importing the network, starting the devices"
    assert [line.split(",")[0] for line in lines[1:]] == ["0:00 starting", "0:02 tuning", "0:07 tuning"]


def test_without_a_terminal_it_is_told_what_the_compiling_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("fleet_tune.report.progress.time.monotonic", lambda: now)
    output = io.StringIO()
    with ProgressView(Console(file=output, width=40), "net") as view:
        view.update(PROGRESS)
        for elapsed in range(11):
            now = 100.0 + elapsed
            doing = "building the first choices of conv" if elapsed < 7 else "timing the network"
            view.update(dataclasses.replace(PROGRESS, phase="compiling", elapsed_secs=75.0 + elapsed, doing=doing))
    assert output.getvalue().splitlines()[1:] == [
        "1:15 compiling: building the first choices of conv",
        "1:20 compiling: building the first choices of conv",
        "1:25 compiling: timing the network",
    ]


LOST = Notice(1, 61.0, "no device of class zen5 can work:\nlost")


def test_a_notice_has_a_line_of_its_own_at_once_and_only_one() -> None:
    output = io.StringIO()
    with ProgressView(Console(file=output, width=40), "net") as view:
        view.update(PROGRESS)
        view.update(dataclasses.replace(PROGRESS, notices=(LOST,)))
        again = (dataclasses.replace(LOST, times=2), Notice(2, 62.0, "the recorder is slow"))
        view.update(dataclasses.replace(PROGRESS, notices=again))
    assert output.getvalue().splitlines()[1:] == [
        "1:01 no device of class zen5 can work: lost",
        "1:02 the recorder is slow",
    ]


def test_the_last_notices_stand_in_the_panel() -> None:
    notices = tuple(Notice(at, 60.0 + at, f"number {at}", times=at) for at in range(1, 6))
    console = Console(width=100, height=30, force_terminal=True, color_system=None, file=io.StringIO())
    view = ProgressView(console, "net")
    view.update(dataclasses.replace(PROGRESS, notices=notices))
    with console.capture() as capture:
        console.print(view._panel)
    lines = [line.strip() for line in capture.get().splitlines() if "noticed" in line]
    assert [line.partition(" ")[2].strip() for line in lines] == [
        "1:03 number 3 (3 times)",
        "1:04 number 4 (4 times)",
        "1:05 number 5 (5 times)",
    ]
    assert len(capture.get().splitlines()) <= 30


@pytest.mark.parametrize(("height", "shown"), [(12, 0), (13, 1), (24, 12), (60, 30)])
def test_the_view_fits_the_terminal(height: int, shown: int) -> None:
    output = io.StringIO()
    console = Console(file=output, width=100, height=height, force_terminal=True, color_system=None)
    view = ProgressView(console, "net")
    view.update(PROGRESS)
    with console.capture() as capture:
        console.print(view._panel)
    lines = capture.get().splitlines()
    assert len(lines) <= height
    assert sum("task" in line and "ms" in line for line in lines) == shown
    text = "\n".join(lines)
    assert ("more" in text) == (0 < shown < 30)
    for part in ("net tuning", "1:15", "3:45 left", "3.2 a second", "build 4, measure 2", "board lost", "30.00 ms"):
        assert part in text
    assert "30, 3 of them finished" in text


def test_on_a_terminal_the_view_is_drawn_and_then_removed() -> None:
    output = io.StringIO()
    console = Console(file=output, width=100, height=30, force_terminal=True, color_system=None)
    with ProgressView(console, "net") as view:
        view.update(PROGRESS)
    drawn = output.getvalue()
    assert "importing the network" in drawn or "240" in drawn
    assert drawn.count("\x1b[2K") > 5, "the lines are erased"


def test_a_run_with_no_limit_and_nothing_yet_is_drawn() -> None:
    console = Console(width=80, height=24, force_terminal=True, color_system=None, file=io.StringIO())
    view = ProgressView(console, "net")
    empty = Progress("starting", 0.0, None, None, 0, 0, {}, 0.0, {}, {}, ())
    view.update(empty)
    with console.capture() as capture:
        console.print(view._panel)
    assert "no trials" in capture.get()


def test_the_steps_of_a_command_without_a_run_are_shown_at_once_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_SECS", 0.0)
    monkeypatch.setattr(progress, "_REFRESH_PER_SEC", 100.0)
    stream = io.StringIO()

    def wait_for(text: str) -> None:
        deadline = time.monotonic() + 60.0
        while text not in stream.getvalue():
            assert time.monotonic() < deadline, stream.getvalue()
            threading.Event().wait(0.01)

    with progress.steps_shown(Console(file=stream, width=80), "net", "compiling"):
        wait_for("net: loading torch and TVM\n")
        with ACTIVITY.step("describing 3 tasks") as say:
            wait_for("0:00 compiling: describing 3 tasks\n")
            say("describing tasks, 2 of 3")
            wait_for("describing tasks, 2 of 3\n")
    assert not any(thread.name == "steps" for thread in threading.enumerate())
