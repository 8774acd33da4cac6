"""Timing on a host that other processes use too: a disturbed measurement is repeated when the host is quiet."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from devices.host.background_load import BackgroundLoad
from fleet_tune.base.cpus import QuotaGroups
from fleet_tune.base.results import SLOW, is_busy

PATIENCE_SECS = 20.0
"""Longest time for waits for a quiet host and repeated measurements of a network."""
_LOOK_SECS = 0.5
_T = TypeVar("_T")


class Clock(Protocol):
    """A clock with a sleep, such as the module :mod:`time`."""

    def monotonic(self) -> float: ...

    def sleep(self, secs: float, /) -> None: ...


class QuietHost:
    """Measures on this machine, and watches disturbances by other processes.

    Args:
        threads: number of threads of the measured network; 0 for one on each processor.
        patience_secs: no wait for a quiet host and no repetition begins after these took so long together.
        report_step: is called with each step.
        clock: the clock.
    """

    def __init__(
        self,
        threads: int = 0,
        patience_secs: float = 0.0,
        report_step: Callable[[str], None] | None = None,
        clock: Clock = time,
    ) -> None:
        self.others_cores: float | None = None
        """Average number of needed processor cores that other processes took during the last measurement. None if it is
        not known."""
        self.throttled = 0.0
        """Share of the periods of a CPU quota in which this process stood still during the last measurement."""
        self._threads = threads
        self._patience_secs = patience_secs
        self._report_step = report_step or (lambda _: None)
        self._clock = clock

    def timed(
        self,
        measure: Callable[[], _T],
        again: Callable[[], _T] | None = None,
        slowness: Callable[[_T], float] | None = None,
    ) -> _T:
        """Return the result of ``measure``. While it is disturbed and patience is left, wait for a quiet host and
        measure again. The least disturbed result counts.

        Args:
            measure: measures the first time.
            again: measures the second time and later.
            slowness: returns how many times as long as expected a result took. None: no time is expected.
        """
        found = self._watched(measure)
        slow = slowness(found) if slowness and self._patience_secs > 0 else 0.0
        while (is_busy(self.others_cores) or slow >= SLOW) and self._wait():
            before = found, slow, self.others_cores, self.throttled
            self._report_step("timing the network again, on a host that is quiet now")
            began = self._clock.monotonic()
            found = self._watched(again or measure)
            slow = slowness(found) if slowness else 0.0
            self._patience_secs -= self._clock.monotonic() - began
            if (_busy(self.others_cores), slow) >= (_busy(before[2]), before[1]):
                found, slow, self.others_cores, self.throttled = before
        return found

    def _watched(self, measure: Callable[[], _T]) -> _T:
        groups = QuotaGroups()
        before = groups.throttling()
        with BackgroundLoad(self._threads) as others:
            found = measure()
        self.others_cores, self.throttled = others.cores, groups.throttling().since(before).share
        return found

    def _wait(self) -> bool:
        """Wait until the host is quiet. Return false if the patience ends first."""
        began, cores = self._clock.monotonic(), self.others_cores
        while self._patience_secs > 0:
            if is_busy(cores):
                doing = f"waiting for a quiet host, {cores or 0.0:.1f} of whose processor cores others use"
            else:
                doing = "waiting for a quiet host, as fast as it was before"
            self._report_step(doing)
            with BackgroundLoad(self._threads) as others:
                self._clock.sleep(_LOOK_SECS)
            now = self._clock.monotonic()
            self._patience_secs -= now - began
            began, cores = now, others.cores
            if not is_busy(cores):
                return True
        return False


def _busy(others_cores: float | None) -> float:
    """Return the cores that other processes take, 0 if they are too few to disturb."""
    return (others_cores or 0.0) if is_busy(others_cores) else 0.0
