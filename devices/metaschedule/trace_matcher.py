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
    """Recognises traces as candidates of the sketches of a task, those of ``task.imported`` included."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.space = DesignSpace(task)
        self._fresh = Schedule(tvm.ir.load_json(task.workload.module), debug_mask="none", error_render_level="none")

    def with_traces(self, traces: Sequence[Any]) -> TraceMatcher:
        """Return a matcher whose task also has the sketches of these traces."""
        texts = tuple(map(json.dumps, traces))
        return TraceMatcher(replace(self.task, imported=(*self.task.imported, *texts)))

    def candidate(self, trace: Any) -> Candidate | None:
        """Return the candidate that a trace is; None if it follows no sketch, or does not fit the program. The trace is
        replayed, which names its variables as ours are named."""
        schedule = self._replayed(trace)
        return None if schedule is None else self.space.recognise(schedule.trace)

    def fits(self, trace: Any) -> bool:
        """Return true if a trace can be applied to the program, with what comes after its decisions."""
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
    """Return a trace with its decisions up to the begin of MetaSchedule's post-processors. Raises one of
    :data:`devices.metaschedule.files.REFUSALS` where it is no trace."""
    instructions, decisions = trace
    end = next((at for at, each in enumerate(instructions) if each[0] == _END), len(instructions))
    return [instructions[:end], [each for each in decisions if each[0] < end]]
