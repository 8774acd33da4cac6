"""``fleet-tune watch``: a run that goes on, that has ended, and that is none."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fleet_tune.base.domain import Measurement, Outcome, Record, Task
from fleet_tune.base.errors import RequestError
from fleet_tune.base.records.files.lock_file import is_locked, release_lock, take_lock
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import Notice, Progress
from fleet_tune.cli.main import main
from fleet_tune.report.dashboard.pages import run_page
from fleet_tune.report.run import shortened_name
from fleet_tune.report.run_history import CurvePoint
from fleet_tune.report.watching import (
    RunWatcher,
    WatchedRun,
    curve,
    looks,
    render_run,
    run_json,
    run_line,
    show,
    with_last_history,
)
from fleet_tune.runs.preparing.out_folder import LOCK_FILE
from fleet_tune.runs.progress_file import ProgressFile
from tests.helpers.records import failed, make_record, ok
from tests.helpers.tasks import make_candidate, make_task

ONCE, TWICE = make_task("a"), make_task("b", weight=2)


def _record(task: Task, number: int, at: float, measured: Measurement) -> Record:
    return replace(make_record(make_candidate(task, number), measured), unix_secs=at, run_id="run")


def _append(folder: Path, *records: Record) -> None:
    with RecordStore(folder / "records.db") as store:
        for task in (ONCE, TWICE):
            store.put_task(task)
        store.append(records)


def _text(run: WatchedRun, *, height: int = 40, whole: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=80, height=height, force_terminal=True, color_system=None)
    console.print(render_run(run, console, 130.0, whole=whole))
    return stream.getvalue()


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[list[int]]:
    """The folder's lock, held until its descriptor is taken out of the list."""
    held = [take_lock(tmp_path / LOCK_FILE)]
    yield held
    for descriptor in held:
        release_lock(descriptor)


def test_a_run_under_way_and_its_end(tmp_path: Path, lock: list[int]) -> None:
    _append(tmp_path, _record(ONCE, 1, 100.0, ok(3e-3)))
    moments: list[float] = []

    def sleep(secs: float) -> None:
        moments.append(secs)
        if len(moments) == 1:
            _append(
                tmp_path,
                _record(TWICE, 1, 110.0, ok(1e-3)),
                _record(TWICE, 2, 120.0, failed(Outcome.BUILD_ERROR, "no such thing")),
            )
        else:
            release_lock(lock.pop())

    # Reading takes no time by this clock: it is read again at once.
    runs = list(looks(RunWatcher(tmp_path, clock=lambda: 0.0).look, 2.0, sleep))
    assert moments == [2.0, 2.0]
    assert [(run.is_under_way, run.history.trials) for run in runs] == [(True, 1), (True, 3), (False, 3)]
    assert run_line(runs[0]) == "0:00 under way, 1 trial (1 ok), 1 of 2 tasks without a result on board"
    assert run_line(runs[1]).startswith("0:20 under way, 3 trials (2 ok, 1 build error), ")
    text = _text(runs[1])
    for part in ("3, the last 0:10 ago", "1 build error: no such thing", "first", "share"):
        assert part in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_what_a_run_does_now(tmp_path: Path, lock: list[int]) -> None:
    _append(tmp_path, _record(ONCE, 1, 100.0, ok(3e-3)))
    snapshot = Progress(
        "tuning",
        20.0,
        80.0,
        None,
        1,
        1,
        {"ok": 1},
        1.0,
        {},
        {"first": "busy", "second": "cooling"},
        (),
        vitals={"first": {"speed": 0.8}, "second": {"speed": 1.01}},
        notices=(Notice(1, 7.0, "device second is hot"),),
        device_time={"board": {"measure": 0.25, "build": 0.75}},
        silent={"recorder": 8.0},
        done_secs=100.0,
    )
    ProgressFile(tmp_path, lambda: 120.0).write(snapshot)
    run = RunWatcher(tmp_path, now=lambda: 123.0).look()
    text = _text(run)
    for part in (
        "under way, tuning",
        "1:00 left (done in about 1:20)",
        "first busy at 80% of its speed, second cooling",
        "builds on board (devices measure 25% of the time)",
        "recorder for 0:12",
        "0:07 device second is hot",
    ):
        assert part in text
    assert "has said nothing" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "the run has said nothing for 0:42" in _text(RunWatcher(tmp_path, now=lambda: 162.0).look())
    assert run_line(run).startswith("0:00 under way, tuning, 1 trial (1 ok), ")
    assert run_line(run).endswith(", 1:00 left (done in about 1:20)")
    now = json.loads(run_json(run))["now"]
    assert (now["phase"], now["silent_secs"], now["limited_by"]) == ("tuning", 3.0, {"board": "build"})
    assert now["notices"] == [{"secs": 7.0, "text": "device second is hot", "times": 1}]
    page = run_page(run, [], "report")
    for part in ("under way, tuning", "first busy at 80% of its speed", "0:07 device second is hot"):
        assert part in page
    release_lock(lock.pop())
    ended = RunWatcher(tmp_path).look()  # it was killed, and its last snapshot stands there
    assert ended.progress is None
    assert "tuning" not in run_line(ended)
    assert json.loads(run_json(ended))["now"] is None


@pytest.mark.usefixtures("lock")
def test_a_history_is_sent_once(tmp_path: Path) -> None:
    _append(tmp_path, _record(ONCE, 1, 100.0, ok(3e-3)))
    watcher = RunWatcher(tmp_path, clock=lambda: 0.0)
    sent: list[int] = []

    def look() -> tuple[WatchedRun, bool]:
        run, is_new = watcher.look_for_changes()
        sent.append(run.history.trials)
        return run, is_new

    whole = with_last_history(look)
    assert [whole().history.trials for _ in range(2)] == [1, 1]
    _append(tmp_path, _record(ONCE, 2, 101.0, ok(2e-3)))
    assert [whole().history.trials for _ in range(2)] == [2, 2]
    assert sent == [1, 0, 2, 0]


def test_a_run_that_imports_its_network_is_waited_for(tmp_path: Path, lock: list[int]) -> None:
    def sleep(_: float) -> None:
        _append(tmp_path, _record(ONCE, 1, 100.0, ok(3e-3)))
        release_lock(lock.pop())

    before, after = looks(RunWatcher(tmp_path).look, 2.0, sleep)
    assert run_line(before) == "0:00 under way, no trials, no tasks"
    assert "no tasks" in _text(before)
    assert after.history.trials == 1


def test_a_run_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _append(tmp_path, _record(ONCE, 1, 100.0, ok(3e-3)), _record(TWICE, 1, 100.0, failed(Outcome.BUILD_ERROR, "no")))
    assert main(["watch", str(tmp_path), "--json"]) == 0
    told = capsys.readouterr()
    body = json.loads(told.out)
    assert body["schema"] == 1
    assert (body["is_under_way"], body["trials"]) == (False, 2)
    assert body["failures"] == {"build_error": {"trials": 1, "first": "no"}}
    assert [each["best_secs"] for each in body["tasks"]] == [pytest.approx(3.15e-3), None]
    assert body["network_secs"] == {"board": None}
    assert "2 trials" in told.err


def test_a_long_run_is_not_read_at_every_look(tmp_path: Path, lock: list[int]) -> None:
    _append(tmp_path, _record(ONCE, 1, 100.0, ok(3e-3)))
    times = iter([0.0, 1.0, 5.0, 12.0, 13.0, 20.0])  # begin, end; begin; begin, end; begin
    watcher = RunWatcher(tmp_path, clock=lambda: next(times))
    assert watcher.look().history.trials == 1
    _append(tmp_path, _record(ONCE, 2, 101.0, ok(2e-3)))
    assert watcher.look().history.trials == 1
    assert watcher.look().history.trials == 2
    _append(tmp_path, _record(ONCE, 3, 102.0, ok(1e-3)))
    release_lock(lock.pop())
    times = iter([20.0, 21.0])
    assert watcher.look().history.trials == 3  # it has ended: the last records are not missed


def test_a_small_terminal_shows_the_first_tasks(tmp_path: Path) -> None:
    _append(tmp_path, *(_record(each, 1, 100.0, ok(1e-3)) for each in (ONCE, TWICE)))
    run = RunWatcher(tmp_path).look()
    assert "and 1 more" not in _text(run)
    assert "and 1 more" not in _text(run, height=10, whole=True)
    rows = 13
    assert "and 2 more" in _text(run, height=rows - 1) or "and 2 more" in _text(run, height=rows - 2)
    assert "share" not in _text(run, height=5)


def test_a_line_comes_with_news_and_every_ten_seconds(tmp_path: Path, lock: list[int]) -> None:
    _append(tmp_path, _record(ONCE, 1, 100.0, ok(1e-3)))
    tuning = Progress("tuning", 20.0, 80.0, None, 1, 1, {"ok": 1}, 1.0, {}, {}, ())
    run, stream, moment = RunWatcher(tmp_path).look(), io.StringIO(), 100.0

    def runs() -> Iterator[WatchedRun]:
        nonlocal moment
        for at, progress in (
            (100.0, tuning),
            (102.0, replace(tuning, elapsed_secs=22.0)),  # less is left
            (104.0, replace(tuning, phase="compiling")),
            (113.0, replace(tuning, phase="compiling", doing="linking")),
            (114.0, replace(tuning, phase="compiling", doing="timing")),
        ):
            moment = at
            yield replace(run, progress=progress)

    show(Console(file=stream, width=80), runs(), now=lambda: moment)
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("0:00 under way")]
    assert [line.split(", ")[1] for line in lines] == ["tuning", "compiling", "compiling: timing"]
    release_lock(lock.pop())


def test_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    _append(tmp_path, *(_record(each, 1, 100.0, ok(1e-3)) for each in (ONCE, TWICE)))
    run, stream = RunWatcher(tmp_path).look(), io.StringIO()
    show(Console(file=stream, width=80), iter([run, run]), now=lambda: 130.0)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("0:00 ended, 2 trials (2 ok), ")
    assert sum(line.startswith("0:00") for line in lines) == 1
    assert "\x1b" not in stream.getvalue()


def test_a_curve_in_characters() -> None:
    points = [CurvePoint(0.0, 1, 8.0), CurvePoint(24.0, 2, 4.0), CurvePoint(48.0, 3, 1.0)]
    assert curve(points, "01234567") == "7" * 23 + "4" * 24 + "1"
    assert curve([CurvePoint(5.0, 1, 2.0)], "01234567") == " " * 47 + "7"


def test_names_keep_their_shapes() -> None:
    assert shortened_name("conv2d_add_relu 56x56x64", 20) == "conv2d_add… 56x56x64"
    assert shortened_name("conv2d_add_relu 56x56x64", 24) == "conv2d_add_relu 56x56x64"
    assert shortened_name("conv2d_add_relu 56x56x64", 8) == "conv2d_add_relu 56x56x64"
    assert shortened_name("softmax", 3) == "softmax"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _append(tmp_path, _record(ONCE, 1, 100.0, ok(3e-3)))
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "1 of 2 tasks without a result on board" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "none")]) != 0
    assert "has no records.db" in capsys.readouterr().err


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has no records\.db"):
        RunWatcher(tmp_path).look()


def test_a_lock_is_seen_and_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    descriptor = take_lock(path)
    assert is_locked(path)
    release_lock(descriptor)
    assert not is_locked(path)
    release_lock(take_lock(path))
