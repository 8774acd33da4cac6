"""How a run is ended by a signal, and work beside it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")


class RunInterruptedError(Exception):
    """A signal came before the work was done."""


class Interruption:
    """SIGINT and SIGTERM end a run in good order, by ``on_signal``; a second one acts as usual. What ends it otherwise,
    whatever it waits for, is told by :meth:`fail`.

    ``signal_number``: of the signal that came, 0 while there was none. To be made in the event loop that runs it.
    """

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self.signal_number = 0
        self._on_signal = on_signal
        self._event = asyncio.Event()
        self._failed = asyncio.Event()
        self._failure: Exception | None = None
        self._previous: dict[int, Any] = {}  # handlers to restore

    @property
    def came(self) -> bool:
        return self._event.is_set()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listens for signals in this block; outside of the main thread, where none arrive, it does not."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.listen()
        try:
            yield
        finally:
            self._restore()

    def listen(self) -> None:
        """Put the handlers in place again, where somebody else has put others."""
        for number in self._previous:
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, number)

    async def unless(self, work: Awaitable[_T]) -> _T:
        """The result of ``work``, or :class:`RunInterruptedError` at once where a signal comes first; see
        :meth:`unless_failed`."""
        return await self._unless(work, self._event, self._failed)

    async def unless_failed(self, work: Awaitable[_T]) -> _T:
        """The result of ``work``, whatever signal comes; raises what the run has failed with where that comes first."""
        return await self._unless(work, self._failed)

    def fail(self, error: Exception) -> None:
        """The run cannot go on: whoever waits for something gets this error."""
        self._failure = error
        self._failed.set()

    async def _unless(self, work: Awaitable[_T], *ends: asyncio.Event) -> _T:
        working = asyncio.ensure_future(work)
        waiting = [asyncio.ensure_future(end.wait()) for end in ends]
        await asyncio.wait([working, *waiting], return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        if working.done() and self._failure is None:
            return working.result()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # it ends by our cancelling, however it says so
            await working
        raise self._failure or RunInterruptedError

    def _interrupt(self, number: int) -> None:
        self._restore()
        self.signal_number = number
        self._event.set()
        self._on_signal()

    def _restore(self) -> None:
        previous, self._previous = self._previous, {}
        for number, handler in previous.items():
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, handler)


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """``work`` goes on beside the block, and ends with it."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
