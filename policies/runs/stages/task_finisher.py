"""The ends of tasks and candidates: a finished task, a dropped task, a candidate that is given up."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_tune.base.domain import Candidate, Measurement
from policies.runs.commands import Command, DropArtifacts, Log
from policies.runs.stages.building import BuildStage
from policies.runs.stages.built_queue import BuiltQueue
from policies.runs.tasks import TaskTrials, Trial


class TaskFinisher:
    """Ends the ``tasks`` and candidates, and drops their builds and queued candidates."""

    def __init__(self, tasks: Mapping[str, TaskTrials], builds: BuildStage, queue: BuiltQueue) -> None:
        self._tasks = tasks
        self._builds = builds
        self._queue = queue

    def finish(self, task: TaskTrials, reason: str) -> list[Command]:
        """Grant the task no more trials, if there is a reason."""
        if not task.finish(reason):
            return []
        return [Log("info", f"{task.task.workload.name} on {task.device_class}: {reason}")]

    def finish_if_complete(self, task: TaskTrials) -> list[Command]:
        """Finish a task that is exhausted or confirmed."""
        exhausted = self.finish(task, task.exhausted_reason())
        return [*exhausted, *self.finish(task, task.confirmed_reason())]

    def give_up(self, candidate: Candidate, failure: Measurement) -> list[Command]:
        """Skip a candidate for the rest of the run, without a record: its cost is unknown."""
        task = self._tasks[candidate.task_id]
        task.candidates.give_up(candidate.id)
        name = f"{task.task.workload.name} on {task.device_class}"
        told = Log("warning", f"a candidate of {name} is skipped: {failure.detail}")
        return [told, DropArtifacts((candidate.id,)), *self.finish_if_complete(task)]

    def without_oracle(self, task: TaskTrials, detail: str) -> list[Command]:
        """Drop a task whose oracle does not build: no result could be checked."""
        reason = f"the unscheduled program does not build: {detail}"
        return [Log("error", f"{task.task.workload.name}: {reason}"), *self.drop(task, reason)]

    def drop(self, task: TaskTrials, reason: str) -> list[Command]:
        """Grant the task no more trials, and drop its candidates that wait for a builder or a device."""
        task_id = task.task.id
        dropped = self._queue.drop_task(task_id)
        jobs = self._builds.drop(
            lambda job: job.task.id == task_id and not (isinstance(job, Trial) and job.is_finalist)
        )
        dropped += [job for job in jobs if isinstance(job, Trial)]
        # A candidate that a builder works on, or whose failure is being recorded, stays under way until that ends.
        unwanted = task.drop(trial.candidate.id for trial in dropped)
        return [DropArtifacts(unwanted), *self.finish(task, reason)]
