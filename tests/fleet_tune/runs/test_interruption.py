"""Interruption of a run that a notebook waits for: the run is in a thread, the interrupt in the caller's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from fleet_tune.runs.interruption import Interruption, RunInterruptedError, run_in_thread

_T = TypeVar("_T")


def in_a_notebook(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """A cell: an event loop runs in this thread, and leaves signals as they are."""

    async def cell() -> _T:
        return run_in_thread(main)

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(cell())


class Caller:
    """The thread of a notebook's cell, which is interrupted while it waits for the run, as its user does it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._waits = threading.Event()
        wait = concurrent.futures.wait

        def noted(*arguments: Any, **options: Any) -> Any:
            self._waits.set()
            return wait(*arguments, **options)

        monkeypatch.setattr(concurrent.futures, "wait", noted)

    async def interrupt(self) -> None:
        self._waits.clear()
        assert await asyncio.to_thread(self._waits.wait, 60.0)
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> Caller:
    return Caller(monkeypatch)


async def _forever() -> None:
    await asyncio.Event().wait()


def test_what_the_coroutine_returns_or_raises_reaches_the_caller() -> None:
    async def answer() -> int:
        return 7

    async def fail() -> None:
        raise ValueError("wrong")

    assert in_a_notebook(answer) == 7
    with pytest.raises(ValueError, match="wrong"):
        in_a_notebook(fail)


def test_an_interrupt_ends_a_run_in_good_order(caller: Caller) -> None:
    async def run() -> str:
        interruption = Interruption()
        with interruption.listening():
            await caller.interrupt()
            with pytest.raises(RunInterruptedError):
                await asyncio.wait_for(interruption.unless(_forever()), 60.0)
        return f"interrupted by signal {interruption.signal_number}"

    assert in_a_notebook(run) == "interrupted by signal 2"


def test_a_second_one_cancels_it(caller: Caller) -> None:
    ended = []

    async def run() -> None:
        interruption = Interruption()
        try:
            with interruption.listening():
                await caller.interrupt()
                with contextlib.suppress(RunInterruptedError):
                    await interruption.unless(_forever())
                await caller.interrupt()
                await asyncio.wait_for(_forever(), 60.0)  # compiles what there is
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(KeyboardInterrupt):
        in_a_notebook(run)
    assert ended == ["cancelled"]


def test_one_before_the_run_listens_cancels_it(caller: Caller) -> None:
    async def run() -> None:
        await caller.interrupt()
        await asyncio.wait_for(_forever(), 60.0)

    with pytest.raises(KeyboardInterrupt):
        in_a_notebook(run)
