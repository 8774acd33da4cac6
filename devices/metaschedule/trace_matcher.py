"""Recognition of stored traces as candidates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm.s_tir import Schedule, Trace

from devices.metaschedule.files import REFUSALS
from devices.sketches.spaces import DesignSpace
from fleet_tune.base.domain import Candidate, Task

_END = "EnterPostproc"


class TraceMatcher:
    """Recognises traces as candidates of the sketches of a task, including those of ``task.imported``."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.space = DesignSpace(task)
        self._fresh = Schedule(tvm.ir.load_json(task.workload.module), debug_mask="none", error_render_level="none")

    def with_traces(self, traces: Sequence[Any]) -> TraceMatcher:
        """Return a matcher for the same task with the sketches of these traces added."""
        texts = tuple(map(json.dumps, traces))
        return TraceMatcher(replace(self.task, imported=(*self.task.imported, *texts)))

    def candidate(self, trace: Any) -> Candidate | None:
        """Return the candidate that a trace represents; None if the trace follows no sketch, or does not fit the
        program. The trace is replayed, so that its variables get the same names as in our traces."""
        schedule = self._replayed(trace)
        return None if schedule is None else self.space.recognise(schedule.trace)

    def fits(self, trace: Any) -> bool:
        """Return true if the whole trace, including post-processors, can be applied to the program."""
        schedule = self._fresh.copy()
        try:
            Trace.apply_json_to_schedule(trace, schedule)
        except REFUSALS:
            return False
        return True

    def _replayed(self, trace: Any) -> Schedule | None:
        schedule = self._fresh.copy()
        try:
            Trace.apply_json_to_schedule(before_postprocessing(trace), schedule)
        except REFUSALS:
            return None
        return schedule


def before_postprocessing(trace: Any) -> list[Any]:
    """Return the part of a trace, with its decisions, before MetaSchedule's post-processors. Raises one of
    :data:`devices.metaschedule.files.REFUSALS` if the value is not a trace."""
    instructions, decisions = trace
    end = next((at for at, each in enumerate(instructions) if each[0] == _END), len(instructions))
    return [instructions[:end], [each for each in decisions if each[0] < end]]
