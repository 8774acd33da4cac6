"""Converts candidates of a dataset to MetaSchedule's: scheduled, post-processed, with their traces."""

from __future__ import annotations

import json
from typing import Any

from tvm.s_tir import Schedule, Trace
from tvm.s_tir import meta_schedule as ms

from devices.sketches.spaces import DesignSpace, ScheduleError, parse_module
from fleet_tune.base.task_data import TaskData


class Scheduler:
    """Schedules the candidates of one task."""

    def __init__(self, data: TaskData) -> None:
        self._data = data
        self._space = DesignSpace(data.task)
        self.module = parse_module(data.task.workload.module)

    def candidate(self, row: int) -> Any | None:
        """Return the MeasureCandidate of a row of the dataset; None if it cannot be scheduled."""
        try:
            scheduled = self._space.schedule(self._data.candidate(row))
        except ScheduleError:
            return None
        schedule = Schedule(self.module, debug_mask="none", error_render_level="none")
        Trace.apply_json_to_schedule(json.loads(scheduled.trace), schedule)
        args = ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
        return ms.search_strategy.MeasureCandidate(schedule, args)
