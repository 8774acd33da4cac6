"""What other processes take of the host while something is timed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from devices.host.other_work import OtherWork
from tests.helpers.waiting import wait_until


class CpuTimes(NamedTuple):
    """As Linux has them, in seconds of all processors."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    steal: float
    guest: float


def test_own_work_waiting_and_guests_counted_twice_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([100.0, 110.0])
    seen = iter([CpuTimes(50, 1, 9, 500, 7, 2, 3), CpuTimes(58, 2, 11, 503, 9, 3, 5)])
    works = iter([os.times_result((4.0, 1.0, 2.0, 0.5, 0.0)), os.times_result((6.0, 1.5, 3.0, 1.0, 0.0))])
    monkeypatch.setattr("devices.host.other_work.time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr("devices.host.other_work.psutil", SimpleNamespace(cpu_times=lambda: next(seen)))
    monkeypatch.setattr("devices.host.other_work.os", SimpleNamespace(times=lambda: next(works)))
    with OtherWork() as others:
        assert others.cores is None
    # user 8, nice 1, system 2 and steal 1 of all; of these 2.5 of this process and 1.5 of its children: 8 in 10 s.
    assert others.cores == pytest.approx(0.8)


def test_a_process_that_works_beside_is_counted() -> None:
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            with OtherWork() as others:
                worked = psutil.Process(busy.pid)
                wait_until(lambda: sum(worked.cpu_times()[:2]) >= 0.6, "work of the other process")
        finally:
            busy.kill()
    assert others.cores is not None
    assert others.cores * (time.monotonic() - began) >= 0.4
