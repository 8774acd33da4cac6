"""The trials that a run was asked for and did not make, by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from fleet_tune.base.domain import Limits
from fleet_tune.base.results import NotTried
from policies.runs.tasks import TaskTrials

TIME_OVER = "the time was used up"
STOPPED = "the run was stopped"
SKIPPED = "the processes that built or measured these candidates were ended from outside again and again"


def trials_not_made(limits: Limits, tasks: Collection[TaskTrials], ended_by: str) -> tuple[NotTried, ...]:
    """Account for every trial that the ``limits`` ask for and that no record shows.

    ``ended_by``: :data:`TIME_OVER` or :data:`STOPPED`; empty if nothing was left to tune. Tasks that were settled
    before the run began lack nothing.
    """
    tasks = [task for task in tasks if not task.planned.settled and not task.is_left_out]
    missing: Counter[str] = Counter()
    skipped = sum(len(task.candidates.given_up) for task in tasks)
    if skipped:
        missing[SKIPPED] = skipped
    lacking = _lacking_of_tasks(limits, tasks)
    if limits.trials is None:
        for task, trials in lacking:
            missing[ended_by or _reason(task)] += trials
    else:
        of_run = limits.trials - sum(task.spent for task in tasks)
        if limits.task_trials is not None:
            of_run = min(of_run, sum(trials for _, trials in lacking))
        if tasks and of_run > 0:
            missing[ended_by or _all_finished(tasks)] += of_run
    return tuple(NotTried(trials, reason) for reason, trials in missing.items() if trials > 0)


def _lacking_of_tasks(limits: Limits, tasks: Collection[TaskTrials]) -> list[tuple[TaskTrials, int]]:
    """Return the number of trials that each task is short of its own limit."""
    if limits.task_trials is None:
        return []
    return [(task, max(0, limits.task_trials - task.spent)) for task in tasks]


def _all_finished(tasks: Collection[TaskTrials]) -> str:
    """Return how the tasks ended in words, the most frequent reason first."""
    counts = Counter(_reason(task) for task in tasks)
    told = ", ".join(f"{reason} ({count})" for reason, count in counts.most_common())
    return f"no task wanted more trials: {told}"


def _reason(task: TaskTrials) -> str:
    """Return the reason why a task got no more trials, without the figures in it."""
    if task.finish_reason:
        return task.finish_reason.partition(":")[0]
    return "at its limit" if task.limit is not None else "exhausted"
