"""The end of a run by a signal, and helpers for concurrent work."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

_T = TypeVar("_T")
_INTERRUPT_SECS = 0.5
"""Longest time until an interrupt of a notebook's cell reaches its run."""


class RunInterruptedError(Exception):
    """The run was interrupted by a signal before the work was done."""


class Interruption:
    """Interruption of a run. SIGINT, SIGTERM and, if it is not ignored, SIGHUP end the run in good order; a second
    signal has its usual effect. :meth:`fail` ends the run with an error, whatever it waits for. Must be made in the
    event loop of the run."""

    def __init__(self) -> None:
        self.signal_number = 0
        """Number of the signal that came; 0 before one comes."""
        self._event = asyncio.Event()
        self._failed = asyncio.Event()
        self._failure: Exception | None = None
        self._previous: dict[int, Any] = {}  # handlers to restore

    @property
    def came(self) -> bool:
        """True after a signal has come."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Wait for a signal."""
        await self._event.wait()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen for signals in this block. Signals reach only a main thread; for others see :func:`run_in_thread`."""
        loop = asyncio.get_running_loop()
        _LISTENING[loop] = self
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
            # Under "nohup" SIGHUP is ignored, and stays so.
            self._previous = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
        for number in self._previous:
            loop.add_signal_handler(number, self.interrupt, number)
        try:
            yield
        finally:
            self._restore()
            _LISTENING.pop(loop, None)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """End the run as this signal would. Must be called in its event loop."""
        self._restore()
        self.signal_number = number
        self._event.set()

    async def unless(self, work: Awaitable[_T]) -> _T:
        """Return the result of ``work``. Raises :class:`RunInterruptedError` at once if a signal comes first, and the
        error of :meth:`fail` if that comes first."""
        return await self._unless(work, self._event, self._failed)

    async def unless_failed(self, work: Awaitable[_T]) -> _T:
        """Return the result of ``work``, also if a signal comes. Raises the error of :meth:`fail` if that comes
        first."""
        return await self._unless(work, self._failed)

    def fail(self, error: Exception) -> None:
        """End the run: everything that waits in :meth:`unless` or :meth:`unless_failed` raises this error."""
        self._failure = error
        self._failed.set()

    async def _unless(self, work: Awaitable[_T], *ends: asyncio.Event) -> _T:
        working = asyncio.ensure_future(work)
        waiting = [asyncio.ensure_future(end.wait()) for end in ends]
        try:
            await asyncio.wait([working, *waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        if working.done() and self._failure is None:
            return working.result()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):  # it was cancelled; its outcome does not matter
            await working
        raise self._failure or RunInterruptedError

    def _restore(self) -> None:
        previous, self._previous = self._previous, {}
        for number, handler in previous.items():
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, handler)


_LISTENING: dict[asyncio.AbstractEventLoop, Interruption] = {}
"""The runs of this process that can be interrupted, by their event loops."""


def run_in_thread(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine to its end in its own thread, for a caller in a running event loop, such as a notebook.

    Only the caller's thread gets KeyboardInterrupt; it interrupts the run as SIGINT does. A second one, or one before
    the run listens, cancels the coroutine and is raised after the coroutine has ended.
    """
    started: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = (
        concurrent.futures.Future()
    )

    async def announced() -> _T:
        task = asyncio.current_task()
        assert task is not None
        started.set_result((asyncio.get_running_loop(), task))
        return await main()

    def end() -> None:
        loop, task = started.result()
        run = _LISTENING.get(loop)
        if run is None or run.came:
            task.cancel()
        else:
            run.interrupt()

    interrupt: KeyboardInterrupt | None = None
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        result = thread.submit(lambda: asyncio.run(announced()))
        done = False
        while not done:
            try:
                # A signal that comes just before this wait is noticed at its timeout.
                done = bool(concurrent.futures.wait([result], timeout=_INTERRUPT_SECS).done)
            except KeyboardInterrupt as error:
                interrupt = error
                with contextlib.suppress(RuntimeError):  # the loop is closed: the coroutine has ended
                    started.result()[0].call_soon_threadsafe(end)
        try:
            return result.result()
        except asyncio.CancelledError as cancelled:
            raise interrupt or cancelled from None


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` concurrently with the block, and cancel it at the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def close_started(starting: asyncio.Future[Any]) -> None:
    """Close the result of ``starting``. If it is still starting, cancel it: then it closes itself."""
    if isinstance(starting, asyncio.Task) and not starting.cancelling():
        starting.cancel()
    try:
        started = await starting
    except (asyncio.CancelledError, Exception):  # raised by the code that awaits the result
        return
    await started.close()
