"""Real-time priority around a kernel: which threads get it, where it is refused, and that a hang cannot abuse it."""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from devices.host.limits.confinement import become
from devices.host.limits.priority import RealtimePriority, free_core, kernel_threads, refusal

allowed = pytest.mark.skipif(bool(refusal()), reason=f"not allowed here: {refusal()}")


def system(root: Path, runtime: str, period: str = "1000000") -> Path:
    folder = root / "proc/sys/kernel"
    folder.mkdir(parents=True)
    (folder / "sched_rt_runtime_us").write_text(runtime)
    (folder / "sched_rt_period_us").write_text(period)
    return root


@pytest.mark.parametrize("runtime", ["-1", "1000000"])
def test_refused_where_a_hang_would_take_all_of_the_time(tmp_path: Path, runtime: str) -> None:
    assert "all of the time" in refusal(system(tmp_path, runtime))


@pytest.mark.parametrize("missing", [True, False])
def test_refused_where_the_system_does_not_say(tmp_path: Path, missing: bool) -> None:
    assert "does not say" in refusal(tmp_path if missing else system(tmp_path, "much"))


def test_asking_changes_nothing() -> None:
    before = os.sched_getscheduler(0)
    refusal()
    assert os.sched_getscheduler(0) == before


@allowed
def test_the_caller_has_it_during_the_block_and_other_python_threads_never() -> None:
    seen: list[int] = []
    asked, done = threading.Event(), threading.Event()

    def watch() -> None:
        asked.wait(30.0)
        seen.append(os.sched_getscheduler(0))
        done.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    with RealtimePriority().raised():
        assert os.sched_getscheduler(0) == os.SCHED_FIFO
        asked.set()
        assert done.wait(30.0)
    watcher.join()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert seen == [os.SCHED_OTHER]


@allowed
def test_it_is_given_back_after_an_error() -> None:
    def fail() -> None:
        with RealtimePriority().raised():
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_not_wanted_is_not_done() -> None:
    priority = RealtimePriority(wanted=False)
    assert priority.refused
    with priority.raised():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_threads_of_a_kernel_are_the_caller_and_all_that_are_not_pythons() -> None:
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        found = kernel_threads()
        assert threading.get_native_id() in found
        assert other.native_id not in found
    finally:
        stop.set()
        other.join()


def test_the_core_that_the_pool_leaves() -> None:
    assert free_core({0, 1}, [{1}]) == 0
    assert free_core({2, 3, 4}, [{3}, {4}]) == 2
    assert free_core({0, 1}, []) is None
    assert free_core({0, 1}, [{0}, {1}]) is None
    assert free_core({0, 1}, [{0, 1}]) is None


_OTHER_USER = """
import sys
from devices.host.limits.confinement import become, confine, default_limits
from devices.host.limits.priority import refusal
become("nobody", int(sys.argv[1]))
confine(default_limits())
print(bool(refusal()))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@allowed
@pytest.mark.parametrize("rt_priority", [2, 0])
def test_another_user_keeps_the_right_to_it_where_that_is_wanted(rt_priority: int) -> None:
    if resource.getrlimit(resource.RLIMIT_RTPRIO) != (0, 0):
        pytest.skip("every user of this machine may have real-time priority")
    rights = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert rights is not None
    may_raise_limits = bool(int(rights[1], 16) >> 24 & 1)  # CAP_SYS_RESOURCE
    command = [sys.executable, "-c", _OTHER_USER, str(rt_priority)]
    done = subprocess.run(command, timeout=60, check=False, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (str(not (rt_priority and may_raise_limits)), "")


def test_the_right_to_it_is_kept_before_the_rights_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", lambda _name: SimpleNamespace(pw_uid=7, pw_gid=8, pw_dir="/"))
    monkeypatch.setattr(resource, "setrlimit", lambda *call: calls.append(call))
    for name in ("initgroups", "setgid", "setuid"):
        monkeypatch.setattr(os, name, lambda *call: calls.append(call))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_given, **_named: SimpleNamespace(prctl=lambda *_call: 0))
    monkeypatch.setattr(os, "environ", {})
    become("other", 2)
    assert calls == [(resource.RLIMIT_RTPRIO, (2, 2)), ("other", 8), (8,), (7,)]


_HANG = """
import threading
from devices.timing.evaluator import kill_after
from devices.host.limits.priority import RealtimePriority

def spin(count):
    while count != 0:
        count -= 1

# As many as there are cores, all of them at real-time priority: the last one is this thread.
import os
with kill_after(0.5), RealtimePriority().raised():
    assert os.sched_getscheduler(0) == os.SCHED_FIFO
    for _ in range(len(os.sched_getaffinity(0)) - 1):
        if os.fork() == 0:
            with kill_after(0.5):
                spin(-1)
    spin(-1)
"""


@allowed
def test_a_hang_at_real_time_priority_on_every_core_is_ended_by_the_timer() -> None:
    done = subprocess.run([sys.executable, "-c", _HANG], timeout=60, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-14, "")  # SIGALRM
