"""The quiet window between real processes: exclusion, no starvation, locks that vanish with a killed holder."""

from __future__ import annotations

import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devices.host.quiet_windows.quiet_window import QuietTimeoutError, QuietWindow
from fleet_tune.base.errors import WindowFolderError

HOLDER = """
import sys
from devices.host.quiet_windows.quiet_window import QuietWindow
window = QuietWindow(sys.argv[1], timeout_secs=30)
with getattr(window, sys.argv[2])():
    print("held", flush=True)
    sys.stdin.readline()
"""

STREAM = """
import sys, time
from devices.host.quiet_windows.quiet_window import QuietWindow
window = QuietWindow(sys.argv[1], timeout_secs=30)
print("held", flush=True)
while True:
    with window.working():
        time.sleep(0.01)
"""


@contextmanager
def process(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait(10)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        child.stdout.close()


def wait_held(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"


def test_workers_share_and_measurements_exclude(tmp_path: Path) -> None:
    window = QuietWindow(tmp_path, timeout_secs=0.05)
    with process(HOLDER, tmp_path, "working") as child:
        wait_held(child)
        with window.working():
            pass
        with pytest.raises(QuietTimeoutError), window.quiet():
            pytest.fail("quiet while another process works")
    with process(HOLDER, tmp_path, "quiet") as child:
        wait_held(child)
        for enter in (window.working, window.quiet):
            with pytest.raises(QuietTimeoutError), enter():
                pytest.fail("entered while another process measures")


@pytest.mark.parametrize("mode", ["working", "quiet"])
def test_locks_vanish_with_a_killed_holder(tmp_path: Path, mode: str) -> None:
    with process(HOLDER, tmp_path, mode) as child:
        wait_held(child)
        entered = threading.Event()

        def measure() -> None:
            with QuietWindow(tmp_path, timeout_secs=30).quiet():
                entered.set()

        waiter = threading.Thread(target=measure)
        waiter.start()
        assert not entered.is_set()
        os.kill(child.pid, signal.SIGKILL)
        assert entered.wait(20)
        waiter.join(20)


def test_a_stream_of_workers_does_not_starve_a_measurement(tmp_path: Path) -> None:
    with process(STREAM, tmp_path) as one, process(STREAM, tmp_path) as two, process(STREAM, tmp_path) as three:
        for child in (one, two, three):
            wait_held(child)
        window = QuietWindow(tmp_path, timeout_secs=20)
        for _ in range(20):
            with window.quiet():
                pass


def test_an_abandoned_wait_keeps_no_lock(tmp_path: Path) -> None:
    window = QuietWindow(tmp_path, timeout_secs=0.02)
    with process(HOLDER, tmp_path, "working") as child:
        wait_held(child)
        with pytest.raises(QuietTimeoutError), window.quiet():
            pass
    # The thread that still waited for the room got it from the killed process, and must give it back.
    with QuietWindow(tmp_path, timeout_secs=20).quiet():
        pass


def test_reentrant_in_a_thread_and_refuses_to_wait_for_itself(tmp_path: Path) -> None:
    window = QuietWindow(tmp_path, timeout_secs=5)
    with window.quiet(), window.quiet(), window.working():
        pass
    with window.working(), window.working(), pytest.raises(RuntimeError, match="wait for itself"), window.quiet():
        pass
    with window.quiet():
        pass


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    window = QuietWindow(tmp_path, timeout_secs=20)
    inside = 0
    most = 0
    guard = threading.Lock()

    def measure() -> None:
        nonlocal inside, most
        for _ in range(5):
            with window.quiet():
                with guard:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=measure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert most == 1


def test_pickles_as_its_path(tmp_path: Path) -> None:
    copy = pickle.loads(pickle.dumps(QuietWindow(tmp_path, timeout_secs=3)))
    assert (copy.path, copy.timeout_secs) == (tmp_path, 3)


def test_its_folder_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "window"
    umask = os.umask(0)
    try:
        QuietWindow(folder)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    QuietWindow(folder)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "file").touch()
    for name, mode in (("for-the-group", 0o770), ("for-all", 0o777)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    for name in ("link", "dangling", "file", "for-the-group", "for-all"):
        with pytest.raises(WindowFolderError, match=rf"{name} .*; remove it, or set TMPDIR"):
            QuietWindow(tmp_path / name)
    monkeypatch.setattr("os.geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(WindowFolderError, match="is another user's"):
        QuietWindow(folder)
