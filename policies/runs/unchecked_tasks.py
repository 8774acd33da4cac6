"""Tasks whose candidates a device measures but cannot verify."""

from __future__ import annotations

from collections.abc import Mapping

from policies.runs.commands import Log
from policies.runs.events import BatchMeasured, BatchPostponed, ShootOutMeasured
from policies.runs.tasks import TaskTrials


class UncheckedTasks:
    """Notices of such tasks, one for each reason.

    Args:
        tasks: the tasks of the run, by their ids.
    """

    def __init__(self, tasks: Mapping[str, TaskTrials]) -> None:
        self._tasks = tasks
        self._reasons: dict[tuple[str, str], str] = {}
        """Reason that people were told, by task and device."""

    def take(self, event: BatchMeasured | ShootOutMeasured | BatchPostponed) -> list[Log]:
        """Return the notices that follow from the end of a batch or of a shoot-out."""
        notices = []
        for task_id, reason in event.unchecked.items():
            if self._reasons.get((task_id, event.device_id), "") == reason:
                continue
            self._reasons[task_id, event.device_id] = reason
            name = f"{self._tasks[task_id].task.workload.name} on device {event.device_id}"
            if reason:
                text = f"{name} is measured and not checked: {reason} (oracle_secs in its entry of the fleet file)"
                notices.append(Log("warning", text))
            else:
                notices.append(Log("notice", f"{name} is checked from now on: its unscheduled program has run"))
        return notices
