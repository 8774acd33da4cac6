"""Holders of a quiet window that do not move, as real processes: they are named, and passed over where they were
stopped; a slow one never is."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devices.host.quiet_windows import window_locks
from devices.host.quiet_windows.process_pauser import PausableProcess, PauseRegistration, running_clock
from devices.host.quiet_windows.quiet_window import QuietWindow
from devices.host.quiet_windows.window_locks import WindowHolder, WindowLocks
from fleet_tune.base.waits import WAITS, ProcessWait

DEADLINE_SECS = 60.0
HOLDER = """
import sys
from devices.host.quiet_windows.quiet_window import QuietWindow, WindowLostError
window = QuietWindow(sys.argv[1], timeout_secs=60, title=sys.argv[3])
with getattr(window, sys.argv[2])():
    print("held", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "quiet":
        try:
            window.check()
            print("mine", flush=True)
        except WindowLostError:
            print("lost", flush=True)
print("left", flush=True)
sys.stdin.readline()
"""
SLEEPER = "import time; print('there', flush=True); time.sleep(1000)"


@contextmanager
def process(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """A child that has said its first line."""
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
    finally:
        child.kill()
        child.wait(10)
        for stream in (child.stdin, child.stdout):
            assert stream is not None
            stream.close()


def answer(child: subprocess.Popen[str]) -> str:
    """What a child says when it is told to go on."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECS
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECS:g} s: {what}"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGSTOP)
    until(lambda: state_of(child.pid) == "T", "it is stopped")


@contextmanager
def entering(window: QuietWindow, mode: str) -> Iterator[threading.Event]:
    """A thread that enters the window, and leaves it at the end of the block. The event is set while it is inside."""
    inside, leave = threading.Event(), threading.Event()

    def enter() -> None:
        with getattr(window, mode)():
            inside.set()
            leave.wait(DEADLINE_SECS)

    thread = threading.Thread(target=enter)
    thread.start()
    try:
        yield inside
    finally:
        leave.set()
        thread.join(DEADLINE_SECS)


def waits_for(pid: int) -> list[ProcessWait]:
    return [wait for wait in WAITS.waits if f"process {pid} " in wait.whom]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_locks, "LOOK_SECS", 0.05)


@pytest.fixture
def window(tmp_path: Path) -> QuietWindow:
    return QuietWindow(tmp_path / "window", timeout_secs=DEADLINE_SECS)


@pytest.mark.parametrize(("held", "mode"), [("quiet", "quiet"), ("quiet", "working"), ("working", "quiet")])
def test_a_stopped_holder_is_named_and_passed_over(window: QuietWindow, held: str, mode: str) -> None:
    told = {line.number for line in WAITS.lines}
    with process(HOLDER, window.path, held, "device cpu of run 12ab") as holder:
        stop(holder)
        with entering(window, mode) as inside:
            assert inside.wait(DEADLINE_SECS)
            [line] = [line.text for line in WAITS.lines if line.number not in told]
            assert f"is taken from process {holder.pid} (device cpu of run 12ab, stopped)" in line
            if held == "quiet":
                # It wakes up while others have the window: it knows, and touches nothing of theirs.
                holder.send_signal(signal.SIGCONT)
                assert answer(holder) == "lost"
                until(lambda: not list((window.path / "holders").glob(f"{holder.pid}-*")), "it has left")
        # Both use the lock files of the next generation from now on.
        with window.quiet():
            window.check()
    assert WindowLocks(window.path).generation == 1


def test_who_waits_says_for_whom_and_for_how_long(window: QuietWindow) -> None:
    with (
        process(HOLDER, window.path, "quiet", "device cpu of run 12ab") as holder,
        entering(window, "working") as inside,
    ):
        until(lambda: waits_for(holder.pid), "the wait is told")
        [wait] = waits_for(holder.pid)
        assert wait.text == f"the quiet window of this machine, which process {holder.pid} (device cpu of run 12ab) has"
        assert wait.secs >= 2.0
        assert answer(holder) == "mine"
        assert inside.wait(DEADLINE_SECS)
        assert waits_for(holder.pid) == []


def test_a_holder_that_is_slow_or_continued_again_and_again_is_not_passed_over(
    window: QuietWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = WindowLocks.holders

    def counted(self: WindowLocks) -> list[WindowHolder]:
        nonlocal looks
        looks += 1
        return look(self)

    def more_looks(count: int) -> None:
        least = looks + count
        until(lambda: looks >= least, f"{least} looks")

    monkeypatch.setattr(WindowLocks, "holders", counted)
    with process(HOLDER, window.path, "quiet", "slow") as holder, entering(window, "quiet") as inside:
        more_looks(2 * window_locks.STILL_LOOKS)
        for _ in range(3):
            stop(holder)
            more_looks(window_locks.STILL_LOOKS // 2)
            holder.send_signal(signal.SIGCONT)
            until(lambda: state_of(holder.pid) != "T", "it goes on")
            more_looks(2)
        assert not inside.is_set()
        assert WindowLocks(window.path).generation == 0
        assert answer(holder) == "mine"
        assert inside.wait(DEADLINE_SECS)


def test_nobody_passes_over_one_that_moves_beside_one_that_does_not(window: QuietWindow) -> None:
    with (
        process(HOLDER, window.path, "working", "stopped") as first,
        process(HOLDER, window.path, "working", "moves") as second,
    ):
        stop(first)
        with entering(window, "quiet") as inside:
            until(lambda: waits_for(second.pid), "it waits for both")
            assert not inside.is_set()
            assert answer(second) == "left"
            assert inside.wait(DEADLINE_SECS)


def test_what_a_stopped_holder_has_stopped_is_continued_though_nobody_waits(window: QuietWindow) -> None:
    with process(SLEEPER) as builder:
        registration = PauseRegistration(window.path, PausableProcess.of(builder.pid, group=False))
        with process(HOLDER, window.path, "quiet", "device cpu of run 12ab") as holder:
            until(lambda: state_of(builder.pid) == "T", "the builder is stopped")
            stop(holder)

            def continued() -> bool:
                window.continue_abandoned()
                return state_of(builder.pid) != "T"

            until(continued, "the builder goes on")
            before = running_clock(window.path)
            until(lambda: running_clock(window.path) > before, "time counts again")
            with window.quiet():
                assert state_of(builder.pid) == "T"
                holder.send_signal(signal.SIGCONT)
                assert answer(holder) == "lost"
                until(lambda: not list((window.path / "holders").glob(f"{holder.pid}-*")), "it has left")
                assert state_of(builder.pid) == "T", "it continues nothing of ours"
        registration.close()
        assert state_of(builder.pid) != "T"


def test_of_two_that_pass_over_one_makes_the_next_generation(window: QuietWindow) -> None:
    locks = WindowLocks(window.path)
    locks.pass_over(0, [])
    locks.pass_over(0, [])  # it had looked before the other one did
    assert locks.generation == 1
    locks.pass_over(1, [])
    locks.pass_over(2, [])
    assert locks.generation == 3
    assert not locks.path(window_locks.TURNSTILE, 1).exists()
    # Somebody opens the lock files of a generation that is over: it does not count.
    with open(locks.path(window_locks.TURNSTILE, 1), "w") as stale:
        fcntl.flock(stale, fcntl.LOCK_EX)
        with window.quiet():
            assert locks.generation == 3
