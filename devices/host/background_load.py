"""Use of this host's processors by other processes while something is timed."""

from __future__ import annotations

import contextlib
import os
import time
from types import TracebackType
from typing import NamedTuple

import psutil  # type: ignore[import-untyped]

_NOT_WORK = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is in user and nice, too


class _Moment(NamedTuple):
    """Seconds of several clocks at one moment."""

    clock: float
    counted: float
    """All time of the processors that we may use."""
    work: float
    """Their work."""
    own: float
    """The work of our own processes."""


class BackgroundLoad:
    """A context that measures how many processor cores other processes used on average.

    Only processors that this process may use count. As many cores as ``threads`` threads leave free are subtracted (0:
    as many threads as there are processors). Descendants of this process count as this process; a daemon, which leaves
    the process tree, counts as another process.

    The system counts time in hundredths of a second, so the result says little for spans of less than some tenths of a
    second.
    """

    def __init__(self, threads: int = 0) -> None:
        #: The result, known at the end; ``None`` if the system does not report it.
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
    """Return the numbers of the processors that this process may use."""
    return os.sched_getaffinity(0)


def _now() -> _Moment | None:
    """Return the clocks now; ``None`` if the system does not report them."""
    with contextlib.suppress(OSError, RuntimeError, psutil.Error):
        each = psutil.cpu_times(percpu=True)
        times = [each[at]._asdict() for at in _usable() if at < len(each)]
        work = sum(secs for fields in times for name, secs in fields.items() if name not in _NOT_WORK)
        counted = sum(sum(fields.values()) for fields in times)
        mine = os.times()
        own = mine.user + mine.system + mine.children_user + mine.children_system
        for child in psutil.Process().children(recursive=True):  # os.times() has a child's work only once it is reaped
            with contextlib.suppress(psutil.Error):
                own += sum(child.cpu_times()[:4])
        return _Moment(time.monotonic(), counted, work, own)
    return None
