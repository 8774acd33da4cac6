"""The end of a run by a signal, and work beside other work."""

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
"""Longest time in which an interrupt of a notebook's cell reaches its run."""


class RunInterruptedError(Exception):
    """The run was interrupted by a signal before the work was done."""


class Interruption:
    """SIGINT, SIGTERM and, where it is not ignored, SIGHUP end a run in good order; a second signal acts as usual.
    :meth:`fail` ends a run with an error, whatever it waits for. To be made in the event loop of the run."""

    def __init__(self) -> None:
        self.signal_number = 0
        """Number of the signal that came; 0 while there was none."""
        self._event = asyncio.Event()
        self._failed = asyncio.Event()
        self._failure: Exception | None = None
        self._previous: dict[int, Any] = {}  # handlers to restore

    @property
    def came(self) -> bool:
        """True once a signal came."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Wait for a signal."""
        await self._event.wait()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen for signals in this block. No signal arrives outside of the main thread: see :func:`run_in_thread`."""
        loop = asyncio.get_running_loop()
        _LISTENING[loop] = self
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
            # "nohup" has SIGHUP ignored.
            self._previous = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
        for number in self._previous:
            loop.add_signal_handler(number, self.interrupt, number)
        try:
            yield
        finally:
            self._restore()
            _LISTENING.pop(loop, None)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """End the run as this signal does. To be called in its event loop."""
        self._restore()
        self.signal_number = number
        self._event.set()

    async def unless(self, work: Awaitable[_T]) -> _T:
        """Return the result of ``work``. Raises :class:`RunInterruptedError` at once if a signal comes first, and as
        :meth:`unless_failed`."""
        return await self._unless(work, self._event, self._failed)

    async def unless_failed(self, work: Awaitable[_T]) -> _T:
        """Return the result of ``work``, whatever signal comes. Raises the error of :meth:`fail` if that comes
        first."""
        return await self._unless(work, self._failed)

    def fail(self, error: Exception) -> None:
        """End the run: whoever waits for something gets this error."""
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
        with contextlib.suppress(asyncio.CancelledError, Exception):  # it ends by our cancelling, however it says so
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
    """Run a coroutine to its end in a thread of its own: for a caller in a running event loop, such as a notebook.

    KeyboardInterrupt, which only the caller's thread gets, interrupts the run as SIGINT does. A second one, or one
    before the run listens, cancels the coroutine and is raised once that has ended.
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
                # A signal that comes just before this waits is seen when it ends.
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
    """Run ``work`` beside the block; it is cancelled at the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def close_started(starting: asyncio.Future[Any]) -> None:
    """Close the result of ``starting``, also if it is still being started: what is cancelled closes itself."""
    if isinstance(starting, asyncio.Task) and not starting.cancelling():
        starting.cancel()
    try:
        started = await starting
    except (asyncio.CancelledError, Exception):  # raised where it is awaited for its result
        return
    await started.close()
