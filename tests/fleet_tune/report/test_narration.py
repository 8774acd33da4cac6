"""What -q, -v and --log-file tell."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from pathlib import Path

import pytest
from rich.console import Console

from fleet_tune.base.errors import RequestError
from fleet_tune.base.results import Notice, Progress, TaskProgress
from fleet_tune.report.narration import Detail, Narration, NewBests
from fleet_tune.report.progress import ProgressView

UNMEASURED = TaskProgress("h@zen5", "conv", "zen5", 1, 2e9, 2, 0, math.inf)
FIRST = dataclasses.replace(UNMEASURED, trials=1, best_secs=2e-3, best_rule="row-wise")
BETTER = dataclasses.replace(FIRST, trials=2, best_secs=1e-3)
FINISHED = dataclasses.replace(BETTER, finished=True, finish_reason="all candidates are measured")
NOTICE = Notice(1, 3.0, "the recorder has ended: another takes its place")


def snapshot(task: TaskProgress, *notices: Notice) -> Progress:
    return Progress(
        phase="tuning",
        elapsed_secs=75.0,
        time_budget_secs=300.0,
        trial_limit=None,
        trials=task.trials,
        new_trials=task.trials,
        outcomes={"ok": task.trials},
        records_per_sec=1.0,
        queues={},
        devices={},
        tasks=(task,),
        notices=notices,
    )


def told(narration: Narration, terminal: bool = False) -> str:
    """What a console is told of a run of four snapshots."""
    output = io.StringIO()
    console = Console(file=output, width=100, height=24, force_terminal=terminal, color_system=None)
    with ProgressView(console, "net", narration) as view:
        for task in (UNMEASURED, FIRST, BETTER):
            view.update(snapshot(task))
        view.update(snapshot(FINISHED, NOTICE))
    return output.getvalue()


def test_a_task_is_told_when_it_gets_faster_and_when_it_is_finished() -> None:
    bests = NewBests()
    lines = [list(bests.lines(snapshot(task))) for task in (UNMEASURED, FIRST, FIRST, BETTER, FINISHED, FINISHED)]
    assert lines == [
        [],
        ["conv on zen5: 2.000 ms, row-wise"],
        [],
        ["conv on zen5: 1.000 ms instead of 2.000 ms, row-wise"],
        ["conv on zen5 is finished: all candidates are measured"],
        [],
    ]


def test_each_detail_tells_more_than_the_one_before() -> None:
    quiet, normal, verbose = (told(Narration(detail)) for detail in Detail)
    assert quiet.splitlines() == [line for line in normal.splitlines() if "recorder" in line]
    assert "1:15 tuning" in normal
    assert "conv on zen5" not in normal
    assert set(normal.splitlines()) < set(verbose.splitlines())
    assert "1:15 conv on zen5: 2.000 ms, row-wise" in verbose


def test_a_terminal_that_is_to_be_quiet_has_no_panel() -> None:
    assert told(Narration(Detail.QUIET), terminal=True) == told(Narration(Detail.QUIET))


def test_a_terminal_shows_new_bests_beside_its_panel_where_they_are_asked_for() -> None:
    assert "1:15 conv on zen5: 2.000 ms" in told(Narration(Detail.VERBOSE), terminal=True)
    assert "1:15 conv on zen5: 2.000 ms" not in told(Narration(), terminal=True)


def test_the_log_has_everything_with_times_and_is_continued(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    for _ in range(2):
        told(Narration(Detail.QUIET, log), terminal=True)
    lines = log.read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ", line) for line in lines)
    texts = [line.split(" ", 1)[1] for line in lines]
    assert texts == 2 * told(Narration(Detail.VERBOSE)).splitlines()


def test_the_log_says_how_the_run_ended(tmp_path: Path) -> None:
    with (
        pytest.raises(RequestError, match="no such device"),
        ProgressView(Console(file=io.StringIO()), "net", Narration(log_file=tmp_path / "run.log")),
    ):
        raise RequestError("no such device", "name another")
    assert "ended by RequestError: no such device" in (tmp_path / "run.log").read_text()


def test_a_log_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"--log-file: .* cannot be written"):
        ProgressView(Console(file=io.StringIO()), "net", Narration(log_file=tmp_path / "nowhere" / "run.log"))
