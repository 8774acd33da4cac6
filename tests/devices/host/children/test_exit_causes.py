"""Whose doing it was that a process ended: its exit code, its memory, and what the kernel ended for want of memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from devices.host.children.exit_causes import describe_exit, ended_from_outside, oom_kill_count, with_memory_reason

KILLED = describe_exit(-signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "outside"),
    [
        (signal.SIGKILL, True),
        (signal.SIGTERM, True),
        (signal.SIGHUP, True),
        (signal.SIGSEGV, False),
        (signal.SIGILL, False),
        (signal.SIGABRT, False),
        (signal.SIGALRM, False),
    ],
)
def test_native_code_ends_itself_by_other_signals_than_people_do(number: signal.Signals, outside: bool) -> None:
    pid = os.fork()
    if pid == 0:
        signal.signal(number, signal.SIG_DFL) if number is not signal.SIGKILL else None
        os.kill(os.getpid(), number)
        signal.pause()
    _, status = os.waitpid(pid, 0)
    end = describe_exit(os.waitstatus_to_exitcode(status))
    assert end == f"killed by {number.name}"
    assert ended_from_outside(end) is outside
    assert ended_from_outside(f"{end}; its last words: killed by SIGKILL") is outside


def test_an_exit_code_is_no_signal() -> None:
    assert not ended_from_outside(describe_exit(0))
    assert not ended_from_outside(describe_exit(1))
    assert describe_exit(-200) == "killed by signal 200"


@pytest.mark.parametrize(
    ("peak_mib", "oom_kills", "outside"), [(499, 1, True), (500, 0, True), (500, 1, False), (2000, 3, False)]
)
def test_who_had_half_of_its_memory_when_the_kernel_was_short_of_it_has_ended_itself(
    peak_mib: int, oom_kills: int, outside: bool
) -> None:
    end = with_memory_reason(KILLED, peak_mib << 20, 1000 << 20, oom_kills)
    assert ended_from_outside(end) is outside
    assert outside or end == f"{KILLED} for its memory: it had {peak_mib} of the 1000 MiB that it may have"
    crash = describe_exit(-signal.SIGSEGV)
    assert with_memory_reason(crash, peak_mib << 20, 1000 << 20, oom_kills) == crash


def test_the_kernel_tells_how_many_processes_it_has_ended_or_nothing(tmp_path: Path) -> None:
    told = tmp_path / "vmstat"
    told.write_text("oom_kill_x 9\noom_kill 7\nnr_free_pages 4\n")
    assert oom_kill_count(told) == 7
    told.write_text("nr_free_pages 4\n")
    assert oom_kill_count(told) == oom_kill_count(tmp_path / "none") == 0
