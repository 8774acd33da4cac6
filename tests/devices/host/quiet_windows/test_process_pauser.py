"""Windows stop what works on the host, with real processes: none is waited for, and none stays stopped."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from devices.host.children.child import ChildProcess
from devices.host.quiet_windows.process_pauser import PausableProcess, PauseRegistration, note_of
from devices.host.quiet_windows.quiet_window import QuietWindow
from tests.helpers.waiting import wait_until

# Works in its own process group, with a process of its own: a compiler and its linker.
BUSY = """
import os, sys, time
if os.fork() == 0:
    while True:
        time.sleep(0.01)
print("ready", os.getpid(), flush=True)
while True:
    time.sleep(0.01)
"""

# Registers itself, as a searcher does.
WORKER = """
import sys, time
from devices.host.quiet_windows.quiet_window import QuietWindow
with QuietWindow(sys.argv[1], 30).stoppable():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
"""

MEASURER = """
import sys, time
from devices.host.quiet_windows.quiet_window import QuietWindow
window = QuietWindow(sys.argv[1], 30)
with window.quiet():
    print("ready", window._pausing._lifeline is not None, flush=True)
    sys.stdin.readline()
window.close()
"""


@contextmanager
def process(code: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("ready")
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for stream in (child.stdin, child.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


@pytest.fixture
def window(tmp_path: Path) -> Iterator[QuietWindow]:
    window = QuietWindow(tmp_path, 20)
    yield window
    window.close()


def guardians(folder: Path) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter(["cmdline"]):
        command = each.info["cmdline"] or []
        if "devices.host.quiet_windows.guardian" in command and str(folder) in command:
            found.append(each)
    return found


def ended(process: psutil.Process) -> bool:
    """One that is ending has no command any more, but its descriptors for a moment longer."""
    try:
        return process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def waits_for_a_lock(process: psutil.Process) -> bool:
    """``/proc/locks`` has an arrow before the locks that are waited for: ``1: -> FLOCK ADVISORY READ 42 ...``."""
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(words[1] == "->" and words[5] == str(process.pid) for words in lines)


def test_a_window_stops_groups_and_processes_and_lets_them_go_on(window: QuietWindow) -> None:
    with process(BUSY) as build, process(WORKER, window.path) as search, process(BUSY) as other:
        registration = PauseRegistration(window.path, PausableProcess.of(build.pid, group=True))
        (linker,) = psutil.Process(build.pid).children()
        with window.quiet():
            wait_until(lambda: stopped(linker.pid), "the process of the group stands still")
            assert stopped(build.pid)
            assert stopped(search.pid)
            assert not stopped(other.pid)
        for pid in (build.pid, linker.pid, search.pid):
            wait_until(lambda pid=pid: not stopped(pid), "it goes on")  # type: ignore[misc]
        registration.close()
        with window.quiet():
            assert stopped(search.pid)
            assert not stopped(build.pid)
        window.close()
        wait_until(lambda: not guardians(window.path), "its guardian is gone")


def test_a_window_opens_at_once_beside_work_that_never_ends(window: QuietWindow) -> None:
    impatient = QuietWindow(window.path, timeout_secs=0.5)
    with process(WORKER, window.path), impatient.quiet():
        pass
    impatient.close()


def test_what_nobody_holds_any_more_is_not_stopped(window: QuietWindow) -> None:
    code = """
import sys
from pathlib import Path
from devices.host.quiet_windows.process_pauser import PauseRegistration, PausableProcess
kept = PauseRegistration(Path(sys.argv[1]), PausableProcess.of(int(sys.argv[2]), group=False))
"""
    with process(BUSY) as build:
        subprocess.run([sys.executable, "-c", code, str(window.path), str(build.pid)], check=True, timeout=60)
        assert list((window.path / "pausable").iterdir())
        with window.quiet():
            assert not stopped(build.pid)
        assert not list((window.path / "pausable").iterdir())


def test_another_process_of_the_same_number_is_not_stopped(window: QuietWindow) -> None:
    with process(BUSY) as build:
        real = PausableProcess.of(build.pid, group=False)
        ended = PausableProcess(real.pid, real.group, str(int(real.started) - 1), real.namespace)
        elsewhere = PausableProcess(real.pid, real.group, real.started, "pid:[1]")
        registrations = [PauseRegistration(window.path, each) for each in (ended, elsewhere)]
        with window.quiet():
            assert not stopped(build.pid)
        for each in registrations:
            each.close()


def test_when_the_one_that_measures_is_killed_all_go_on_at_once(window: QuietWindow) -> None:
    with process(WORKER, window.path) as search:
        with process(MEASURER, window.path) as measurer:
            wait_until(lambda: stopped(search.pid), "it stands still")
            os.killpg(measurer.pid, signal.SIGKILL)
            measurer.wait()
            wait_until(lambda: not stopped(search.pid), "it goes on")
        wait_until(lambda: not guardians(window.path), "the guardian is gone")
        before = window.clock()
        wait_until(lambda: window.clock() > before, "time goes on")


def test_when_the_guardian_is_killed_too_the_next_one_lets_all_go_on(window: QuietWindow) -> None:
    with process(WORKER, window.path) as search, process(MEASURER, window.path) as measurer:
        wait_until(lambda: stopped(search.pid), "it stands still")
        (guardian,) = guardians(window.path)
        guardian.kill()
        wait_until(lambda: ended(guardian), "it is gone")
        os.killpg(measurer.pid, signal.SIGKILL)
        measurer.wait()
        assert stopped(search.pid)
        with window.working():
            wait_until(lambda: not stopped(search.pid), "it goes on")
        assert not list((window.path / "paused").iterdir())


def test_a_group_goes_on_whose_first_process_is_killed_while_it_stands_still(window: QuietWindow) -> None:
    with process(BUSY) as build:
        registration = PauseRegistration(window.path, PausableProcess.of(build.pid, group=True))
        (linker,) = psutil.Process(build.pid).children()
        with window.quiet():
            wait_until(lambda: stopped(linker.pid), "the process of the group stands still")
            build.kill()
            build.wait()
            assert stopped(linker.pid)
        wait_until(lambda: not stopped(linker.pid), "it goes on")
        registration.close()


def test_a_guardian_that_comes_late_leaves_the_next_window_alone(window: QuietWindow) -> None:
    """Its process is gone, and another device of the host has opened its window before it looks."""
    gone = 4_000_000
    with process(WORKER, window.path) as search:
        with window.quiet():
            (mine,) = guardians(window.path)
            clock = window.clock()
            note_of(window.path, gone).write_text(note_of(window.path, os.getpid()).read_text())
            subprocess.run(
                [sys.executable, "-m", "devices.host.quiet_windows.guardian", str(window.path), str(gone)],
                stdin=subprocess.DEVNULL,
                check=True,
                timeout=60,
            )
            wait_until(
                lambda: all(waits_for_a_lock(each) for each in guardians(window.path) if each.pid != mine.pid),
                "it waits, or is gone",
            )
            assert stopped(search.pid)
            assert window.clock() == clock
        wait_until(lambda: guardians(window.path) == [mine], "it is gone")
        assert not list((window.path / "paused").iterdir())
        assert not stopped(search.pid)


def test_a_note_that_is_torn_keeps_nobody_stopped(window: QuietWindow) -> None:
    with process(BUSY) as build:
        whole = PausableProcess.of(build.pid, group=True)
        note = note_of(window.path, 4_000_000)  # of a process that is gone
        note.parent.mkdir()
        for torn in (whole.text[:3], whole.text.rpartition(" ")[0], "one 1 2 here", "\udcff\0"):
            os.killpg(build.pid, signal.SIGSTOP)
            wait_until(lambda: stopped(build.pid), "it stands still")
            note.write_bytes(os.fsencode(f"{torn}\n{whole.text}{torn}"))
            with window.working():
                wait_until(lambda: not stopped(build.pid), "it goes on")
            assert not note.exists()
        with window.quiet():
            pass


def test_without_room_for_its_note_nothing_is_stopped(window: QuietWindow, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = Path.write_text

    def write_text(self: Path, text: str) -> int:
        writes(self, text[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with process(WORKER, window.path) as search:
        with monkeypatch.context() as full:
            full.setattr(Path, "write_text", write_text)
            with pytest.raises(OSError, match="No space left"), window.quiet():
                pytest.fail("opened")
        assert not stopped(search.pid)
        assert {path.name for path in window.path.iterdir()} == {"holders", "pausable", "paused", "room", "turnstile"}
        assert not list((window.path / "paused").iterdir())
        with window.quiet():
            assert stopped(search.pid)


def test_a_guardian_that_is_killed_is_replaced(window: QuietWindow) -> None:
    with process(WORKER, window.path) as search:
        with window.quiet():
            (guardian,) = guardians(window.path)
        guardian.kill()
        wait_until(lambda: ended(guardian), "it is gone")
        with window.quiet():
            (another,) = guardians(window.path)
            assert stopped(search.pid)
        assert another.pid != guardian.pid
        assert another.ppid() != os.getpid()  # whoever ends this process' children does not end it


def test_the_clock_stands_still_while_something_is_stopped(
    window: QuietWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, ahead_secs = time.monotonic, 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now() + ahead_secs)
    with process(WORKER, window.path):
        with window.quiet():
            first = window.clock()
            ahead_secs = 1000.0
            assert window.clock() == pytest.approx(first, abs=1e-6)
            assert QuietWindow(window.path).clock() == pytest.approx(first, abs=1e-6)  # for everybody
        wait_until(lambda: window.clock() > first, "it goes on")
        closed = window.clock()
        assert closed < first + 1000.0  # from where it was
        ahead_secs = 2000.0
        assert window.clock() >= closed + 1000.0


def test_a_process_is_born_when_no_window_is_open(window: QuietWindow, tmp_path: Path) -> None:
    born: list[ChildProcess] = []

    def start() -> None:
        child, registration = QuietWindow(tmp_path, 20).started(lambda: ChildProcess("http.server", ["0"]))
        born.append(child)
        registration.close()

    thread = threading.Thread(target=start)
    with window.quiet():
        thread.start()
        wait_until(lambda: any(each.name == "quiet-window" for each in threading.enumerate()), "it waits")
        assert not born
    thread.join(20)
    assert len(born) == 1
    born[0].kill()
