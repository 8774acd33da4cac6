"""The last snapshot of a run in its folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_tune.base.results import Notice, NotTried, Progress, TaskProgress
from fleet_tune.base.stages import DurationHistogram, StageProgress
from fleet_tune.runs.preparing.out_folder import LOCK_FILE, held_folder
from fleet_tune.runs.progress_file import PROGRESS_FILE, ProgressFile, saved_progress

TASK = TaskProgress("a@board", "matmul 8", "board", 1, 1e9, 1, 1, 1e-3)
TUNING = Progress(
    "tuning",
    30.0,
    80.0,
    None,
    2,
    1,
    {"ok": 2},
    1.0,
    {"build": 3},
    {"board": "busy"},
    (TASK,),
    vitals={"board": {"speed": 0.8}},
    notices=(Notice(1, 2.0, "a line"),),
    device_time={"board": {"measure": 0.75, "build": 0.25}},
    not_tried=(NotTried(1, "a reason"),),
    behind={"board": ("other", 3.0)},
    stages={"build": StageProgress(4, durations=DurationHistogram())},
)


def test_a_snapshot_comes_back_without_its_tasks(tmp_path: Path) -> None:
    ProgressFile(tmp_path, lambda: 100.0).write(TUNING)
    saved = saved_progress(tmp_path)
    assert saved is not None
    assert saved.unix_secs == 100.0
    assert saved.progress == replace(TUNING, tasks=())


def test_one_a_second_is_written_and_each_phase_at_once(tmp_path: Path) -> None:
    now = 100.0
    file = ProgressFile(tmp_path, lambda: now)

    def kept() -> tuple[str, float]:
        saved = saved_progress(tmp_path)
        assert saved is not None
        return saved.progress.phase, saved.progress.elapsed_secs

    file.write(TUNING)
    now = 100.9
    file.write(replace(TUNING, elapsed_secs=30.9))
    assert kept() == ("tuning", 30.0)
    file.write(replace(TUNING, elapsed_secs=30.9, phase="compiling"))
    assert kept() == ("compiling", 30.9)
    now = 50.0  # the clock was set back
    file.write(replace(TUNING, elapsed_secs=31.0, phase="compiling"))
    assert kept() == ("compiling", 31.0)


def test_the_file_goes_with_the_run(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path)
    file.close()
    file.write(TUNING)
    file.close()
    assert os.listdir(tmp_path) == []
    assert saved_progress(tmp_path) is None


def test_what_a_killed_run_has_left_goes_before_the_folder_is_used(tmp_path: Path) -> None:
    ProgressFile(tmp_path).write(TUNING)
    (tmp_path / f".{PROGRESS_FILE}.ab12.part").touch()
    with held_folder(tmp_path):
        assert sorted(os.listdir(tmp_path)) == [LOCK_FILE]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'"\xff"', b'{"unix_secs": 1.0}', b'{"unix_secs": 1.0, "progress": {"phase": 3}}']
)
def test_a_file_of_another_version_tells_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PROGRESS_FILE).write_bytes(content)
    assert saved_progress(tmp_path) is None


def test_a_file_that_cannot_be_written_or_removed_does_not_end_the_run(tmp_path: Path) -> None:
    file = ProgressFile(tmp_path / "gone")
    file.write(TUNING)
    file.close()
    (tmp_path / PROGRESS_FILE).mkdir()
    file = ProgressFile(tmp_path)
    file.write(TUNING)
    file.write(replace(TUNING, phase="another", doing="\udc80"))
    file.close()
