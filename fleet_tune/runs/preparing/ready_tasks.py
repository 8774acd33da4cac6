"""The tasks of a lowered network as they become ready: described, each with the start of its search."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from devices.describing.cache import TaskDescription
from devices.describing.describer import TaskDescriber
from devices.host.quiet_windows.quiet_window import QuietWindow
from devices.sketches.rules.library import uses_library
from fleet_tune.base.domain import Task
from fleet_tune.base.records.datasets.dataset import load
from fleet_tune.base.results import SkippedPart
from fleet_tune.base.search_task import SearchTask
from fleet_tune.base.sketch import Sketch
from fleet_tune.base.task_data import Dataset


@dataclass(frozen=True)
class ReadyTask:
    """A task that is described, or that cannot be described."""

    entry: SearchTask
    """The task with its sketches. It has none if it cannot be tuned."""
    left_out: tuple[SkippedPart, ...] = ()
    """Parts of the task that the run does without, with the reasons."""


def in_order(
    undescribed: Sequence[SearchTask], ready: Sequence[ReadyTask]
) -> tuple[tuple[SearchTask, ...], tuple[SkippedPart, ...]]:
    """Return the ready tasks that have a sketch, in the order of ``undescribed``, and all parts that are left out."""
    order = {entry.task.id: at for at, entry in enumerate(undescribed)}
    ordered = sorted(ready, key=lambda each: order[each.entry.task.id])
    left_out = tuple(part for each in ordered for part in each.left_out)
    return tuple(each.entry for each in ordered if each.entry.sketches), left_out


class ReadyTasks:
    """An iterator over tasks in the order in which they become ready.

    Args:
        entries: tasks without sketches.
        datasets: files that answer for the devices, if any.
        with_start: adds to a task the cost model and the seeds from which its search starts.
        window: the quiet window of this host, if a device on this host may measure meanwhile.

    Raises DescriberStartError, and the errors of reading the datasets.
    """

    def __init__(
        self,
        entries: Sequence[SearchTask],
        datasets: Sequence[Path] = (),
        with_start: Callable[[SearchTask], SearchTask] | None = None,
        window: QuietWindow | None = None,
    ) -> None:
        self._entries = entries
        self._datasets = datasets
        self._with_start = with_start
        self._window = window
        self._describing = TaskDescriber([entry.task for entry in entries], window=window)

    def __iter__(self) -> ReadyTasks:
        return self

    def __next__(self) -> ReadyTask:
        at, described = next(self._describing)
        bare, sketches = self._entries[at], described.sketches
        if not sketches:
            return ReadyTask(bare, missing_of(bare.task, described))
        recorded = _recorded(bare.task, sketches, self._loaded)
        entry = dataclasses.replace(bare, sketches=sketches, recorded=recorded)
        if self._with_start is not None:
            with self._window.working() if self._window else contextlib.nullcontext():
                entry = self._with_start(entry)
        return ReadyTask(entry, missing_of(bare.task, described))

    def begin(self) -> None:
        """Start to describe in the background, before the first ``next``."""
        self._describing.begin()

    def close(self) -> None:
        """Stop describing. For a thread that waits for the next task, the iteration ends."""
        self._describing.close()

    @cached_property
    def _loaded(self) -> list[Dataset]:
        return [load(path) for path in self._datasets]


def missing_of(task: Task, described: TaskDescription) -> tuple[SkippedPart, ...]:
    """List the parts of a task that are left out. It is the task itself if it has no sketch."""
    name, device_class = task.workload.name, task.device_class.name
    if not described.sketches:
        reasons = dict.fromkeys(reason for _, reason in described.left_out) or ["no sketch rule applies to it"]
        return (SkippedPart("task", name, device_class, "", "; ".join(reasons)),)
    missing = [SkippedPart("sketch", name, device_class, rule, reason) for rule, reason in described.left_out]
    # Library calls cannot be described, and the user has asked for the library: they are not reported.
    undescribed = [each for each in described.sketches if each.undescribed and not uses_library(each.trace_text)]
    missing += [SkippedPart("description", name, device_class, each.rule, each.undescribed) for each in undescribed]
    return tuple(missing)


def _recorded(
    task: Task, sketches: Sequence[Sketch], datasets: Sequence[Dataset]
) -> tuple[NDArray[np.int64], ...] | None:
    """Return the value of :attr:`SearchTask.recorded`: None without datasets, empty matrices for a task that is in no
    dataset."""
    if not datasets:
        return None
    for data in itertools.chain.from_iterable(datasets):
        if data.task.id == task.id:
            return data.with_sketches(sketches)[0].decisions
    return tuple(np.empty((0, sketch.width), dtype=np.int64) for sketch in sketches)
