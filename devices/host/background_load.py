"""What other processes take of this host's processors while something is timed."""

from __future__ import annotations

import contextlib
import os
import time
from types import TracebackType
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

_NOT_WORK = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is in user and nice, too


class _Moment(NamedTuple):
    """Seconds of the clock, of all time and of the work of the processors that we may use, and of our own work."""

    clock: float
    counted: float
    work: float
    own: float


class BackgroundLoad:
    """A context; ``cores`` is known when it has ended: how many processor cores others than this process and its
    descendants used on the average, beyond those that ``threads`` threads leave free; None where the system does not
    say. ``threads`` 0: as many as there are processors. Of these, only those that this process may use count; a
    process that leaves the family meanwhile, a daemon, counts as another.

    The system counts in hundredths of a second: of a shorter span than some tenths it says little.
    """

    def __init__(self, threads: int = 0) -> None:
        self.cores: float | None = None
        self._threads = threads
        self._began: _Moment | None = None

    def __enter__(self) -> BackgroundLoad:
        self._began = _now()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        began, ended = self._began, _now()
        if began is None or ended is None or ended.clock <= began.clock or ended.counted <= began.counted:
            return
        used = (ended.work - began.work - (ended.own - began.own)) / (ended.clock - began.clock)
        usable = len(_usable())
        free = usable - min(self._threads or usable, usable)
        self.cores = max(used - free, 0.0)


def _usable() -> set[int]:
    """Numbers of the processors that this process may use."""
    return os.sched_getaffinity(0)


def _now() -> _Moment | None:
    """None where the system does not tell."""
    with contextlib.suppress(OSError, RuntimeError, psutil.Error):
        each = psutil.cpu_times(percpu=True)
        times = [each[at]._asdict() for at in _usable() if at < len(each)]
        work = sum(secs for fields in times for name, secs in fields.items() if name not in _NOT_WORK)
        counted = sum(sum(fields.values()) for fields in times)
        mine = os.times()
        own = mine.user + mine.system + mine.children_user + mine.children_system
        for child in psutil.Process().children(recursive=True):  # when one is waited for, all its work comes at once
            with contextlib.suppress(psutil.Error):
                own += sum(child.cpu_times()[:4])
        return _Moment(time.monotonic(), counted, work, own)
    return None
