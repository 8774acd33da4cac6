"""Runs that are killed at any moment: no process is left within seconds, and no file once the next run has begun."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import signal
import subprocess
import sys
import uuid
from functools import partial
from pathlib import Path

import psutil
import pytest

from devices.host.owned_folder import remove_abandoned
from tests.helpers.waiting import wait_until

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

ROOT = Path(__file__).parents[3]
MARK = "FLEET_TUNE_TEST_MARK"
START_SECS, END_SECS = 180.0, 15.0
RUN_FOLDERS = "fleet-tune-tmp-run-*"
# What is for all runs of a user.
SHARED = ("fleet-tune-quiet-", "torchinductor_")
# Programs of a run, in the order in which they begin.
POINTS = (
    "lowering_worker",
    "gcs_server",
    "raylet",
    "agent.py",
    "setup_worker.py",
    "default_worker.py",
    "session_server",
    "builds.worker",
    "quiet_windows.guardian",
)


class KilledRun:
    """One command. Its descendants have a mark in their environment, or files open in a folder of the run."""

    def __init__(self, folder: Path, number: int) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.folders_before = run_folders()
        command = ["tune", "examples/networks.py:mlp", "--no-store", "--out", str(folder / f"out-{number}")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fleet_tune", *command, "--time-budget", "10m"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(self.temporary), MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill_at(self, point: str) -> None:
        """Kill it when a program begins."""
        try:
            wait_until(lambda: self._runs(point), f"{point} begins", START_SECS)
        finally:
            self.kill()

    def kill_after(self, secs: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(secs)
        self.kill()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def processes(self) -> list[str]:
        """The command lines of its processes that still run."""
        abandoned = run_folders() - self.folders_before
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                files = [os.readlink(each) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
                names = [*process.cmdline(), *files]
                own = process.environ().get(MARK) == self.mark
                if own or any(str(folder) in name for folder in abandoned for name in names):
                    left.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}")
        return left

    def _runs(self, point: str) -> bool:
        assert self.process.poll() is None, f"it ended before {point} began"
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(point in part for part in process.cmdline() if not part.startswith("--")):
                    return True
        return False


def run_folders() -> set[Path]:
    """The folders of runs that nobody has locked."""
    found = set()
    for folder in Path("/tmp").glob(RUN_FOLDERS):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                found.add(folder)
            finally:
                os.close(descriptor)
    return found


def test_nothing_is_left_of_runs_that_are_killed_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(0)
    left: set[Path] = set()
    temporary = tmp_path
    at_random = [""] * 2
    mixed = itertools.zip_longest(POINTS, at_random)
    for number, point in enumerate([*(each for pair in mixed for each in pair if each is not None), "raylet"]):
        run = KilledRun(tmp_path, number)
        if point:
            run.kill_at(point)
        else:
            run.kill_after(rng.uniform(0.5, 14.0))
        wait_until(partial(ended, run), f"all processes of a run killed at {point or 'a random moment'} end", END_SECS)
        if point and point != POINTS[0]:
            assert not left & run_folders(), "the next run removes what those before have left"
            left = set()
        left |= run_folders() - run.folders_before
        temporary = run.temporary
    for place in (Path("/tmp"), temporary):  # as the next run does
        remove_abandoned(place)
    assert not left & run_folders()
    assert [each.name for each in temporary.iterdir() if not each.name.startswith(SHARED)] == []


def ended(run: KilledRun) -> bool:
    return not run.processes()
