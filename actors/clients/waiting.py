"""Waits for answers of actors. A wait ends before its deadline if the actor does not answer heartbeats. Time in which a
quiet window stops the actor does not count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from actors.clients.calls import ActorLostError, ActorTimeoutError, ask
from actors.heartbeat import Heartbeat
from devices.host.quiet_windows.quiet_window import QuietWindow

BEAT_SECS = 15.0
"""Longest wait for the heartbeat of a thread that has nothing else to do, on a machine that may be busy."""
_BEAT_EVERY_SECS = 2.0
_LOOK_AGAIN_SECS = 0.1
_T = TypeVar("_T")


def clock_of(window: QuietWindow | None) -> Callable[[], float]:
    """The clock that counts the silence of a process which this window may stop."""
    return time.monotonic if window is None else window.clock


async def ask_by_clock(clock: Callable[[], float], reference: Any, deadline_secs: float, what: str) -> Any:
    """:func:`actors.clients.calls.ask`, with a deadline by a clock that may stand still at times."""
    deadline = clock() + deadline_secs
    work = asyncio.ensure_future(ask(reference, None, what))
    try:
        while (left_secs := deadline - clock()) > 0:
            # A clock that stands still is not read in a busy loop.
            done, _ = await asyncio.wait([work], timeout=max(left_secs, _LOOK_AGAIN_SECS))
            if done:
                return work.result()
        raise ActorTimeoutError(f"{what}: no answer within {deadline_secs:g} s")
    finally:
        work.cancel()


async def while_alive(
    working: Awaitable[_T],
    beat: Callable[[], Awaitable[Heartbeat]],
    most: int,
    who: str,
    clock: Callable[[], float] = time.monotonic,
    report_wait: Callable[[str], None] = lambda _: None,
) -> _T:
    """Wait for the result of ``working`` while its actor answers heartbeats.

    Args:
        working: the call that is waited for.
        beat: requests a heartbeat; raises ActorTimeoutError without an answer.
        most: missed heartbeats in a row after which the actor counts as hanging.
        who: name of the actor for people.
        clock: counts the silence; it may stand still at times.
        report_wait: is called with what the actor itself waits for, and with an empty text once that wait is over.

    Raises what the call raises, and ActorTimeoutError if the actor hangs.
    """
    work = asyncio.ensure_future(working)
    missed, heard_at = 0, clock()
    told = False
    try:
        while True:
            done, _ = await asyncio.wait([work], timeout=_BEAT_EVERY_SECS)
            if done:
                return work.result()
            try:
                waits = (await beat()).waits
                missed, heard_at = 0, clock()
                if waits or told:
                    told = bool(waits)
                    report_wait(" and ".join(f"waits for {wait.text_so_far}" for wait in waits))
            except ActorTimeoutError:
                missed += 1
                silent_secs = clock() - heard_at
                if missed >= most and silent_secs >= most * BEAT_SECS and not work.done():
                    raise ActorTimeoutError(f"{who} gives no sign of life") from None
            except ActorLostError:
                continue  # the call itself fails then
    finally:
        work.cancel()
        if told:
            report_wait("")
