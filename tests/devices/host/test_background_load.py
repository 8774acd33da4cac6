"""What other processes take of the host while something is timed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import psutil
import pytest

from devices.host import background_load
from devices.host.background_load import BackgroundLoad
from tests.helpers.waiting import wait_until

BUSY = [sys.executable, "-c", "while True: pass"]


class CpuTimes(NamedTuple):
    """As Linux has them, in seconds of one processor."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    steal: float
    guest: float


class Moments:
    """Of a host with four processors of which this process may use the first two; each is asked of once at every
    moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *processors: list[CpuTimes]) -> None:
        self._processors = iter(processors)
        self._clock = iter([100.0, 110.0])
        self._work: Iterator[tuple[float, ...]] = iter([(4.0, 1.0, 2.0, 0.5, 0.0), (6.0, 1.5, 3.0, 1.0, 0.0)])
        monkeypatch.setattr(background_load, "_usable", lambda: {0, 1})
        monkeypatch.setattr("devices.host.background_load.psutil.cpu_times", self._cpu_times)
        monkeypatch.setattr("devices.host.background_load.psutil.Process.children", lambda *_, **__: [])
        monkeypatch.setattr("devices.host.background_load.os.times", lambda: os.times_result(next(self._work)))
        monkeypatch.setattr("devices.host.background_load.time.monotonic", lambda: next(self._clock))

    def _cpu_times(self, percpu: bool) -> list[CpuTimes]:
        assert percpu
        return next(self._processors)


IDLE = CpuTimes(0, 0, 0, 0, 0, 0, 0)
BEFORE = [CpuTimes(50, 1, 9, 500, 7, 2, 3), CpuTimes(10, 0, 0, 90, 0, 0, 0), IDLE, IDLE]
# Of the first two: user 8, nice 1, system 2 and steal 1, and user 6 more. The others are not ours to use.
AFTER = [CpuTimes(58, 2, 11, 503, 9, 3, 5), CpuTimes(16, 0, 0, 94, 0, 0, 0), CpuTimes(10, 0, 0, 0, 0, 0, 0), IDLE]


# 18 s of work, 2.5 of it of this process and 1.5 of children that it has waited for: 14 s of others in 10.
@pytest.mark.parametrize(("threads", "cores"), [(0, 1.4), (2, 1.4), (1, 0.4), (64, 1.4)])
def test_others_count_as_far_as_they_take_what_the_threads_need(
    monkeypatch: pytest.MonkeyPatch, threads: int, cores: float
) -> None:
    Moments(monkeypatch, BEFORE, AFTER)
    with BackgroundLoad(threads) as others:
        assert others.cores is None
    assert others.cores == pytest.approx(cores)


def test_nobody_knows_where_the_counters_stand_still_or_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    Moments(monkeypatch, BEFORE, BEFORE)
    with BackgroundLoad() as others:
        pass
    assert others.cores is None

    def refused(percpu: bool) -> list[CpuTimes]:  # noqa: ARG001
        raise PermissionError("/proc/stat")

    monkeypatch.setattr("devices.host.background_load.psutil.cpu_times", refused)
    with BackgroundLoad() as others:
        pass
    assert others.cores is None


def worked(process: psutil.Process, secs: float) -> bool:
    return sum(process.cpu_times()[:2]) >= secs


def test_a_child_is_no_other_whenever_it_worked_and_is_waited_for() -> None:
    """All of its work comes at once when it is waited for, also that from before."""
    with subprocess.Popen(BUSY) as child:
        process = psutil.Process(child.pid)
        wait_until(lambda: worked(process, 0.5), "work before")
        before = background_load._now()
        wait_until(lambda: worked(process, 1.0), "work meanwhile")
        child.kill()
    after = background_load._now()
    assert before is not None
    assert after is not None
    assert after.own - before.own == pytest.approx(0.5, abs=0.3)


def test_work_is_seen() -> None:
    before = background_load._now()
    spent = time.process_time()
    while time.process_time() - spent < 0.5:
        pass
    after = background_load._now()
    assert before is not None
    assert after is not None
    assert after.own - before.own >= 0.45
    assert after.work - before.work >= 0.4
    assert after.counted - before.counted >= 0.4
