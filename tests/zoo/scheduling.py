"""Descriptions of tasks, and one candidate for each: what a run does to a task before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from devices.describing import cache
from devices.describing.worker import TASK_SECS, left_undescribed
from devices.sketches.generation import first_line
from devices.sketches.spaces import DesignSpace, ScheduleError
from fleet_tune.base.domain import Candidate, Task
from fleet_tune.base.sketch import Sketch
from fleet_tune.runs.preparing.ready_tasks import missing_of
from policies.analysis.analyzer import score
from policies.space.sampling import sample
from tests.helpers.devices import CPU

_DRAWN, _TRIED = 64, 5


@dataclass(frozen=True)
class Described:
    """``left_out``: what the plan would name, and, where a candidate was asked for, that there is none. ``trace``: the
    candidate, None where none was asked for or found. ``secs``: processor time, ``wall_secs``: by the clock."""

    sketches: int
    left_out: tuple[str, ...]
    trace: str | None
    secs: float
    wall_secs: float


class Descriptions:
    """The descriptions of tasks, each made once: networks, and the forms of a network, share many of theirs."""

    def __init__(self, candidates: bool) -> None:
        self._candidates = candidates
        self._by_task: dict[str, Described] = {}

    def of(self, task: Task) -> Described:
        if task.id not in self._by_task:
            self._by_task[task.id] = self._described(task)
        return self._by_task[task.id]

    def _described(self, task: Task) -> Described:
        wall, processor = time.monotonic(), time.process_time()
        of_task = _sketches(task)
        sketches, missing = of_task.sketches, missing_of(task, of_task)
        secs, wall_secs = time.process_time() - processor, time.monotonic() - wall
        lines = tuple(f"{each.what} {each.task} {each.rule}: {each.reason}" for each in missing)
        trace = None
        if self._candidates and sketches:
            trace, reason = _first_choice(task, sketches)
            lines += (f"candidate {task.workload.name}: {reason}",) if reason else ()
        return Described(len(sketches), lines, trace, secs, wall_secs)


def _sketches(task: Task) -> cache.TaskDescription:
    """As the processes of :mod:`devices.describing` make them, in this one: its processor time is that of one core."""
    started = time.process_time()
    try:
        space = DesignSpace(task)
    except Exception as error:  # what a run says of a task that TVM cannot read
        return cache.TaskDescription((), (("", first_line(error)),))
    sketches = [
        left_undescribed(sketch) if time.process_time() - started > TASK_SECS else space.described(at)
        for at, sketch in enumerate(space.undescribed)
    ]
    return cache.TaskDescription.of(sketches, space.left_out)


def _first_choice(task: Task, sketches: Sequence[Sketch]) -> tuple[str | None, str]:
    """The trace of the candidate that the analyzer expects to be fastest, of a few drawn from every sketch, and that
    TVM can schedule; or why there is none."""
    space, generator = DesignSpace(task), np.random.default_rng(0)
    ranked: list[tuple[float, Candidate]] = []
    for sketch in sketches:
        matrix = sample(sketch, _DRAWN, generator)
        if sketch.statements:
            secs, feasible = score(sketch, matrix, CPU)
        else:
            secs, feasible = np.full(len(matrix), np.inf), np.ones(len(matrix), dtype=bool)
        for row, cost in zip(matrix[feasible], secs[feasible], strict=True):
            decisions = tuple(int(value) for value in row)
            ranked.append((float(cost), Candidate(task.id, sketch.index, sketch.id, decisions)))
    ranked.sort(key=lambda pair: pair[0])
    reason = "no candidate is worth building"
    for _, candidate in ranked[:_TRIED]:
        try:
            return space.schedule(candidate).trace, ""
        except ScheduleError as error:
            reason = str(error)
    return None, reason
