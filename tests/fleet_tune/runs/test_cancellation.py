"""Cancellation of a thread that compiles networks when a run ends."""

from __future__ import annotations

import threading

import pytest

from fleet_tune.runs.cancellation import Cancellation, CancelledBuildError


class Process:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_what_is_owned_is_closed_also_where_it_comes_too_late() -> None:
    cancellation, early, late = Cancellation(), Process(), Process()
    cancellation.own(early)
    assert not early.closed
    cancellation.cancel()
    assert early.closed
    assert cancellation.came
    with pytest.raises(CancelledBuildError):
        cancellation.own(late)
    assert late.closed


def test_who_cancels_waits_for_what_is_being_published() -> None:
    cancellation = Cancellation()
    ended = threading.Event()

    def cancel() -> None:
        cancellation.cancel()
        ended.set()

    canceller = threading.Thread(target=cancel)
    with cancellation.publishing():
        canceller.start()
        assert not ended.is_set()
        assert not cancellation.came
    canceller.join(60.0)
    assert ended.is_set()
    with pytest.raises(CancelledBuildError), cancellation.publishing():
        raise AssertionError("published after the end")
