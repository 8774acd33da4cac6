"""Child processes that try what may crash or hang, several at a time, and that are replaced when they are lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import psutil

STILL_SECS = 300
"""A child that uses no processor time for so long hangs: it waits for something that does not come."""

_LOOK_SECS = 1.0
_GOODBYE_SECS = 20


class LostError(Exception):
    """The child died or was ended before it answered; the message says how."""


Answer = tuple[Any, Any]
"""A question, and what a child answered, or the :class:`LostError` of one that did not."""


def answers(
    groups: Iterable[Sequence[Any]], serve: Callable[..., None], arguments: Sequence[Any], secs: float, processes: int
) -> Iterator[Answer]:
    """Answers to all questions, as they come from ``processes`` children at a time; each group goes to one child.

    ``serve(pipe, *arguments)`` runs in a child: it receives questions from the pipe and sends an answer to each until
    the pipe closes. ``secs`` is the limit for an answer, in processor time of the child and what it started: other work
    on the machine, which lengthens the clock's time, loses nothing.
    """
    waiting, lock = iter(groups), threading.Lock()
    found: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
    stopped = threading.Event()

    def next_group() -> Sequence[Any] | None:
        with lock:
            return None if stopped.is_set() else next(waiting, None)

    def ask_all() -> None:
        try:
            with contextlib.closing(_Child(serve, arguments, secs)) as child:
                while (group := next_group()) is not None:
                    for question in group:
                        if not stopped.is_set():
                            found.put((question, child.answer(question)))
        finally:
            found.put(None)

    with ThreadPoolExecutor(processes) as pool:
        running = [pool.submit(ask_all) for _ in range(processes)]
        try:
            for _ in running:
                while (answer := found.get()) is not None:
                    yield answer
        finally:
            stopped.set()
        for each in running:
            each.result()


class _Child:
    """One process after the other, each started when there is something to ask."""

    def __init__(self, serve: Callable[..., None], arguments: Sequence[Any], secs: float) -> None:
        self._serve, self._arguments, self._secs = serve, arguments, secs
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Connection | None = None

    def answer(self, question: Any) -> Any:
        """The child's answer, or a :class:`LostError`."""
        if self._pipe is None:
            self._pipe, theirs = self._context.Pipe()
            self._process = self._context.Process(target=self._serve, args=(theirs, *self._arguments), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send(question)
            self._wait(self._pipe)
            return self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join()
            error = LostError(f"the process died (exit code {self._process.exitcode})")
        except LostError as lost:
            error = lost
        self._end()
        return error

    def close(self) -> None:
        """Lets an idle child end by itself, which the end of its pipe tells it to."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.join(_GOODBYE_SECS)
            self._end()

    def _wait(self, pipe: Connection) -> None:
        """Raises LostError where no answer comes within the limits."""
        first = last = _processor_secs(self._process.pid)
        moved = time.monotonic()
        while not pipe.poll(_LOOK_SECS):
            used = _processor_secs(self._process.pid)
            if used != last:
                last, moved = used, time.monotonic()
            if used - first > self._secs:
                raise LostError(f"took more than {self._secs} s of processor time")
            if time.monotonic() - moved > STILL_SECS:
                raise LostError(f"hangs: no work in {STILL_SECS} s")

    def _end(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        self._process.kill()
        self._process.join()
        self._pipe = None


def _processor_secs(pid: int) -> float:
    """Processor time of a process, its descendants included; 0 of one that is gone."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += sum(each.cpu_times()[:4])
    return total
