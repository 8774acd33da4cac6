"""Makes and describes the sketches of many tasks in parallel child processes.

TVM's sketch generation and the descriptions run native code on arbitrary programs. If a child crashes, hangs or needs
too much memory, the current sketch stays undescribed (or the task has no sketches, if they were not made yet), and
another child continues. If the child was ended from outside, the sketch is tried again.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from devices.builds.builder import memory_limit
from devices.describing.cache import DescriptionCache, TaskDescription
from devices.host.children.child import ChildProcess
from devices.host.children.exit_causes import ended_from_outside
from devices.host.file_cache import user_folder
from devices.host.limits.confinement import memory_total_bytes
from devices.host.limits.memory import over_memory
from devices.host.quiet_windows.process_pauser import PauseRegistration
from devices.host.quiet_windows.quiet_window import QuietTimeoutError, QuietWindow
from devices.host.warm_process import MEND_INSTALLATION
from devices.protocol import encode_task
from fleet_tune.base.cpus import usable_cpus
from fleet_tune.base.domain import Task
from fleet_tune.base.errors import UserError
from fleet_tune.base.records.datasets.dataset_codec import decode_sketches
from fleet_tune.base.sketch import Sketch

ANSWER_SECS = 180.0
"""Seconds without an answer after which a child counts as hung. A child starts no further description after a sixth of
this in processor time (:data:`devices.describing.worker.TASK_SECS`); the rest is a margin for busy machines."""

_START_SECS = 120.0
_KILLS = 3
"""Number of children ended from outside during one sketch after which the sketch counts as the cause and is skipped."""
_RECYCLE_BYTES = 2 << 30


class DescriberStartError(UserError):
    """The child process could not be started: mend the installation, or free memory."""


class TaskDescriber:
    """Describes tasks in parallel, beginning with the first call of :meth:`begin` or ``next``.

    It is an iterator over pairs of a task's position and its description, in the order in which descriptions become
    ready. Cached ones come first. ``next`` may raise :class:`DescriberStartError`; the iteration is then over.

    Args:
        tasks: the tasks.
        kept: cache of descriptions; None for the user's cache.
        workers: number of children at a time; None for one for each core.
        answer_secs: seconds without an answer after which a child counts as hung.
        window: quiet window that stops the children while a device of this host measures.
        module: module that the children run (tests give their own).
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        kept: DescriptionCache | None = None,
        *,
        workers: int | None = None,
        answer_secs: float = ANSWER_SECS,
        window: QuietWindow | None = None,
        module: str = "devices.describing.worker",
    ) -> None:
        self._tasks = tasks
        self._kept = kept or DescriptionCache(user_folder())
        self._workers = workers or usable_cpus()
        self._answer_secs = answer_secs
        self._window = window
        self._module = module
        self._left = len(tasks)
        self._at_work: list[_Worker] = []
        self._begun = self._closed = False
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[int, TaskDescription] | Exception | None] = queue.SimpleQueue()

    def __iter__(self) -> TaskDescriber:
        return self

    def __next__(self) -> tuple[int, TaskDescription]:
        self.begin()
        if not self._left or self._closed:
            raise StopIteration
        answer = self._answers.get()
        if answer is None or self._closed:
            raise StopIteration
        if isinstance(answer, Exception):
            self.close()
            raise answer
        self._left -= 1
        return answer

    def begin(self) -> None:
        """Start to describe in the background. Further calls do nothing."""
        if not self._begun:
            self._begun = True
            self._in_background(self._look_up, "describer")

    def close(self) -> None:
        """Stop describing: the children end, and the iteration ends for a caller that waits in ``next``."""
        self._closed = True
        self._answers.put(None)
        for worker in self._at_work:
            worker.abort()

    def _in_background(self, work: Callable[[], None], name: str) -> None:
        def checked() -> None:
            try:
                work()
            except Exception as error:
                self._answers.put(error)

        threading.Thread(target=checked, name=name, daemon=True).start()

    def _look_up(self) -> None:
        """Return the cached descriptions, and start workers for the other tasks."""
        missing: list[int] = []
        for at, task in enumerate(self._tasks):
            described = self._kept.find(task)
            if described is None:
                missing.append(at)
            else:
                self._answers.put((at, described))
        # The largest programs come first, because other cores are idle while the last task is described.
        for at in sorted(missing, key=lambda at: -len(self._tasks[at].workload.module)):
            self._waiting.put(at)
        count = min(len(missing), self._workers)
        for number in range(count):
            limit_bytes = memory_limit(memory_total_bytes(), count)
            self._in_background(partial(self._work, limit_bytes), f"describer {number}")

    def _work(self, memory_limit_bytes: int) -> None:
        arguments = (self._module, memory_limit_bytes, self._answer_secs, self._window, lambda: self._closed)
        with contextlib.suppress(queue.Empty, _ClosedError), _Worker(*arguments) as worker:
            self._at_work.append(worker)
            while True:
                at = self._waiting.get_nowait()
                described, complete = worker.describe(self._tasks[at])
                # A sketch that failed for lack of memory may succeed on another machine, or later.
                if complete and not any(over_memory(reason) for _, reason in described.left_out):
                    self._kept.store(self._tasks[at], described)
                self._answers.put((at, described))


def describe_tasks(
    tasks: Sequence[Task],
    kept: DescriptionCache | None = None,
    workers: int | None = None,
    answer_secs: float = ANSWER_SECS,
    module: str = "devices.describing.worker",
) -> list[TaskDescription]:
    """Return the sketches of every task, in the order of ``tasks``; see :class:`TaskDescriber`."""
    described = dict(TaskDescriber(tasks, kept, workers=workers, answer_secs=answer_secs, module=module))
    return [described[at] for at in range(len(tasks))]


class _ClosedError(Exception):
    """The describer was closed."""


@dataclass
class _Progress:
    """The sketches of a task, and how many are done."""

    sketches: list[Sketch]
    left_out: tuple[tuple[str, str], ...]
    done: int = 0
    """Number of sketches that are described or given up."""


class _Worker:
    """Runs one child at a time, and replaces a lost one. Quiet windows stop the child."""

    def __init__(
        self,
        module: str,
        memory_limit_bytes: int,
        answer_secs: float,
        window: QuietWindow | None,
        is_closed: Callable[[], bool],
    ) -> None:
        self._module = module
        self._memory_limit_bytes = memory_limit_bytes
        self._answer_secs = answer_secs
        self._window = window
        self._clock = time.monotonic if window is None else window.clock
        self._is_closed = is_closed
        self._child: ChildProcess | None = None
        self._stoppable: PauseRegistration | None = None

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def describe(self, task: Task) -> tuple[TaskDescription, bool]:
        """Return the sketches of ``task``, and true if they are complete: no child was lost, and no sketch came too
        late to be described over fewer rows. Raises _ClosedError if the describer is closed between two steps."""
        progress: _Progress | None = None
        complete = True
        kills = 0
        while progress is None or progress.done < len(progress.sketches):
            child = self._ready_child()
            try:
                opened = self._answer(child, {"task": encode_task(task)})
                if "failed" in opened:
                    self._recycle(opened["resident_bytes"])
                    return TaskDescription((), (("", str(opened["failed"])),)), complete
                if progress is None:
                    left_out = tuple((str(rule), str(reason)) for rule, reason in opened["left_out"])
                    progress = _Progress(list(decode_sketches(opened["opened"])), left_out)
                while progress.done < len(progress.sketches):
                    answer = self._answer(child, {"describe": progress.done})
                    (sketch,) = decode_sketches(answer["described"])
                    progress.sketches[progress.done] = sketch
                    progress.done += 1
                    # On a faster machine, this sketch would be described over fewer rows too.
                    complete &= not (answer["late"] and task.fewer_rows and sketch.statements)
                    kills = 0
                    self._recycle(answer["resident_bytes"] if progress.done == len(progress.sketches) else 0)
            except QuietTimeoutError:
                raise
            except (EOFError, OSError) as error:  # a TimeoutError is one
                reason = self._lost(child, error)
                kills += ended_from_outside(reason)
                if 0 < kills < _KILLS:
                    continue
                complete, kills = False, 0
                if progress is None:
                    return TaskDescription((), (("", reason),)), complete
                given_up = progress.sketches[progress.done]
                if not given_up.described:
                    progress.sketches[progress.done] = replace(given_up, undescribed=reason)
                progress.done += 1
        return TaskDescription.of(progress.sketches, progress.left_out), complete

    def abort(self) -> None:
        """End the child at once, even during a request. May be called from any thread."""
        child = self._child
        if child is not None:
            child.abort()

    def _answer(self, child: ChildProcess, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._is_closed():
            raise _ClosedError
        child.channel.send(request)
        return child.channel.receive(self._answer_secs, self._clock)

    def _ready_child(self) -> ChildProcess:
        if self._is_closed():
            raise _ClosedError
        if self._child is None:
            arguments = [f"--memory-limit={self._memory_limit_bytes}"]
            start = partial(ChildProcess, self._module, arguments, {"TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
            if self._window is None:
                self._child = child = start()
            else:
                child, self._stoppable = self._window.started(start)
                self._child = child
            try:
                child.channel.receive(_START_SECS, self._clock)
            except (EOFError, OSError) as error:
                reason = child.obituary(0.0 if isinstance(error, TimeoutError) else 5.0)
                problem = f"the process that describes sketches did not start: {reason}"
                raise DescriberStartError(problem, MEND_INSTALLATION) from error
        return self._child

    def _lost(self, child: ChildProcess, error: Exception) -> str:
        """Return in one line why a child was lost, and end it. The next request starts another child."""
        if isinstance(error, TimeoutError):
            reason = f"its process gave no answer within {self._answer_secs:g} s"
        else:
            how, _, _ = child.obituary().partition('; File "')  # without lines of the stack
            reason = f"its process ended: {how}"
        self._end()
        return reason

    def _recycle(self, resident_bytes: int) -> None:
        if resident_bytes > _RECYCLE_BYTES:
            self._end()

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
        if self._stoppable is not None:
            self._stoppable.close()
            self._stoppable = None
