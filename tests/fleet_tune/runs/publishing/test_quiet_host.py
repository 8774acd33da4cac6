"""What is timed on a busy host is timed again when it is quiet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet_tune.runs.publishing import quiet_host
from fleet_tune.runs.publishing.quiet_host import QuietHost


class Clock:
    """Moves while it is waited for."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, secs: float, /) -> None:
        self.now += secs


class Loads:
    """Cores that others take, one figure for each look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *cores: float | None) -> None:
        self._coming: Iterator[float | None] = iter(cores)
        self.cores: float | None = None
        monkeypatch.setattr(quiet_host, "BackgroundLoad", lambda _threads: self)

    def __enter__(self) -> Loads:
        self.cores = next(self._coming)
        return self

    def __exit__(self, *_: object) -> None: ...


def timed(monkeypatch: pytest.MonkeyPatch, patience_secs: float, *cores: float | None) -> tuple[int, QuietHost]:
    """The number of the result that counts, and the host. ``cores``: of each timing and each look."""
    Loads(monkeypatch, *cores)
    results = iter(range(9))
    told: list[str] = []
    host = QuietHost(2, patience_secs, told.append, Clock())
    return host.timed(lambda: next(results)), host


def test_a_quiet_host_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found, host = timed(monkeypatch, 20.0, 0.1)
    assert (found, host.others_cores) == (0, 0.1)
    assert timed(monkeypatch, 20.0, None)[0] == 0


def test_what_others_have_disturbed_is_timed_again_once_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Busy while it is timed, at two looks more, then quiet; the second timing is not disturbed.
    found, host = timed(monkeypatch, 20.0, 1.5, 1.5, 0.9, 0.0, 0.05)
    assert (found, host.others_cores) == (1, 0.05)


def test_the_least_disturbed_result_counts_where_they_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found, host = timed(monkeypatch, 1.5, 1.0, 0.0, 0.4, 0.0, 0.7, 0.0, 0.8)
    assert (found, host.others_cores) == (1, 0.4)


def test_a_host_that_is_never_quiet_is_waited_for_as_long_as_there_is_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    found, host = timed(monkeypatch, 2.0, *[1.5] * 5)
    assert (found, host.others_cores) == (0, 1.5)
    assert timed(monkeypatch, 0.0, 1.5)[0] == 0


def test_the_patience_is_that_of_all_timings_together(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, 1.5, 1.5, 1.5, 1.5)
    told: list[str] = []
    host = QuietHost(2, 1.0, told.append, Clock())
    assert [host.timed(lambda: 1), host.timed(lambda: 2)] == [1, 2]
    assert told == ["waiting for a quiet host, 1.5 of whose processor cores others use"] * 2


def test_a_second_timing_may_be_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, 1.5, 0.0, 0.0)
    assert QuietHost(2, 20.0, clock=Clock()).timed(lambda: "outputs and times", lambda: "times") == "times"


def test_what_is_slower_than_estimated_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, *[0.0] * 9)
    told: list[str] = []
    host, coming = QuietHost(2, 20.0, told.append, Clock()), iter((1.5, 1.3, 1.4, 1.1))
    assert host.timed(lambda: next(coming), slowness=lambda secs: secs) == 1.1
    waited, again = (
        "waiting for a quiet host, as fast as it was before",
        "timing the network again, on a host",
    )
    assert [line.startswith((waited, again)[at % 2]) for at, line in enumerate(told)] == [True] * 6


def test_the_least_slow_result_counts_and_timing_again_takes_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, *[0.0] * 9)
    clock, coming = Clock(), iter((1.5, 1.2, 1.4, 1.0))

    def measure() -> float:
        clock.sleep(1.0)
        return next(coming)

    host = QuietHost(2, 2.5, clock=clock)
    # Waits of 0.5 s and timings of 1 s: after two there is no patience left.
    assert host.timed(measure, slowness=lambda secs: secs) == 1.2
    assert next(coming) == 1.0
    assert host.timed(lambda: 9.0, slowness=lambda secs: secs) == 9.0


def test_a_result_of_a_quiet_host_is_better_than_a_fast_one_of_a_busy_host(monkeypatch: pytest.MonkeyPatch) -> None:
    Loads(monkeypatch, 1.0, 0.0, 0.1, 0.1, 0.1)
    coming = iter((1.2, 1.4))
    host = QuietHost(2, 0.9, clock=Clock())
    assert host.timed(lambda: next(coming, 1.6), slowness=lambda secs: secs) == 1.4
