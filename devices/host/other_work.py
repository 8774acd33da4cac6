"""What other processes take of this host's processors while something is timed."""

from __future__ import annotations

import os
import time
from types import TracebackType

import psutil  # type: ignore[import-untyped]

_NOT_WORK = ("idle", "iowait", "guest", "guest_nice")  # a guest's time is in user and nice, too


class OtherWork:
    """A context; ``cores`` is known when it has ended: how many processor cores others than this process and the
    children that it has waited for used meanwhile, on the average. Time that a hypervisor took away is others', too.

    The system counts in hundredths of a second: of a shorter span than some tenths it says little.
    """

    def __init__(self) -> None:
        self.cores: float | None = None
        self._began: tuple[float, float, float] | None = None

    def __enter__(self) -> OtherWork:
        self._began = _now()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._began is not None
        secs, used, own = (after - before for after, before in zip(_now(), self._began, strict=True))
        self.cores = max(used - own, 0.0) / secs if secs > 0 else None


def _now() -> tuple[float, float, float]:
    """Seconds: of the clock, of work of all processors, and of this process and its ended children."""
    work = sum(secs for name, secs in psutil.cpu_times()._asdict().items() if name not in _NOT_WORK)
    own = os.times()
    return time.monotonic(), work, own.user + own.system + own.children_user + own.children_system
