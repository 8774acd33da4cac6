"""Makes and describes the sketches of many tasks in child processes, side by side.

TVM's sketch generation and the descriptions are native code over whatever programs a network brings: a child that
crashes, hangs or wants too much memory costs the sketch that it was at, or the task where it had no sketch yet, and
another child goes on.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from devices.builds.builder import memory_limit
from devices.describing.kept import Described, DescriptionCache
from devices.host.child import Child
from devices.host.confinement import memory_total_bytes
from devices.host.file_cache import user_folder
from devices.host.memory import over_memory
from devices.protocol import encode_task
from fleet_tune.domain import Task
from fleet_tune.errors import FleetTuneError
from fleet_tune.records.dataset_codec import decode_sketches
from fleet_tune.sketch import Sketch

ANSWER_SECS = 180.0
"""Seconds without an answer after which a child counts as hung. The descriptions of a task end by themselves after a
sixth of that in processor time (:data:`devices.describing.worker.TASK_SECS`); the rest is for machines with other
work."""

_START_SECS = 120.0
_RECYCLE_BYTES = 2 << 30


class DescriberStartError(FleetTuneError):
    """The child process could not be started: a fault of the installation, not of a task."""


def describe_tasks(
    tasks: Sequence[Task],
    kept: DescriptionCache | None = None,
    workers: int | None = None,
    answer_secs: float = ANSWER_SECS,
    module: str = "devices.describing.worker",
) -> list[Described]:
    """The sketches of every task, in the order of ``tasks``; those in ``kept`` without any work.

    ``kept``: None for the user's cache. ``workers``: children at a time, None for one for each core. ``module``: what
    they run (tests give their own). Raises :class:`DescriberStartError`.
    """
    kept = kept or DescriptionCache(user_folder())
    found = [kept.find(task) for task in tasks]
    missing = [at for at, described in enumerate(found) if described is None]
    # The largest programs first: what is begun last is waited for with the other cores idle.
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for at in sorted(missing, key=lambda at: -len(tasks[at].workload.module)):
        waiting.put(at)
    count = min(len(missing), workers or len(os.sched_getaffinity(0)))
    failures: list[Exception] = []

    def work() -> None:
        try:
            with _Worker(module, memory_limit(memory_total_bytes(), count), answer_secs) as worker:
                while not failures:
                    at = waiting.get_nowait()
                    described, complete = worker.describe(tasks[at])
                    found[at] = described
                    # What was refused for want of memory may be there on another machine, or tomorrow.
                    if complete and not any(over_memory(reason) for _, reason in described.left_out):
                        kept.store(tasks[at], described)
        except queue.Empty:
            pass
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, name=f"describer {number}", daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [described for described in found if described is not None]


@dataclass
class _Progress:
    """What is known of a task's sketches: ``done`` of them are described or given up."""

    sketches: list[Sketch]
    left_out: tuple[tuple[str, str], ...]
    done: int = 0


class _Worker:
    """One child at a time; a lost one is replaced."""

    def __init__(self, module: str, memory_limit_bytes: int, answer_secs: float) -> None:
        self._module = module
        self._memory_limit_bytes = memory_limit_bytes
        self._answer_secs = answer_secs
        self._child: Child | None = None

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def describe(self, task: Task) -> tuple[Described, bool]:
        """The sketches of ``task``, and whether no child was lost over them."""
        progress: _Progress | None = None
        complete = True
        while progress is None or progress.done < len(progress.sketches):
            at = 0 if progress is None else progress.done
            child = self._ready_child()
            try:
                child.channel.send({"task": encode_task(task), "first": at})
                opened = child.channel.receive(self._answer_secs)
                if "failed" in opened:
                    self._recycle(opened["resident_bytes"])
                    return Described((), (("", str(opened["failed"])),)), complete
                if progress is None:
                    left_out = tuple((str(rule), str(reason)) for rule, reason in opened["left_out"])
                    progress = _Progress(list(decode_sketches(opened["opened"])), left_out)
                while progress.done < len(progress.sketches):
                    answer = child.channel.receive(self._answer_secs)
                    (progress.sketches[progress.done],) = decode_sketches(answer["described"])
                    progress.done += 1
                    self._recycle(answer["resident_bytes"] if progress.done == len(progress.sketches) else 0)
            except (EOFError, OSError) as error:  # a TimeoutError is one
                reason = self._lost(child, error)
                complete = False
                if progress is None:
                    return Described((), (("", reason),)), complete
                given_up = progress.sketches[progress.done]
                if not given_up.statements:
                    progress.sketches[progress.done] = replace(given_up, undescribed=reason)
                progress.done += 1
        return Described(tuple(progress.sketches), progress.left_out), complete

    def _ready_child(self) -> Child:
        if self._child is None:
            arguments = [f"--memory-limit={self._memory_limit_bytes}"]
            child = Child(self._module, arguments, {"TVM_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
            self._child = child
            try:
                child.channel.receive(_START_SECS)
            except (EOFError, OSError) as error:
                reason = child.obituary(0.0 if isinstance(error, TimeoutError) else 5.0)
                raise DescriberStartError(f"the process that describes sketches did not start: {reason}") from error
        return self._child

    def _lost(self, child: Child, error: Exception) -> str:
        """Why, in one line; the next task gets another child."""
        if isinstance(error, TimeoutError):
            reason = f"its process gave no answer within {self._answer_secs:g} s"
        else:
            how, _, _ = child.obituary().partition('; File "')  # of a stack without names
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
