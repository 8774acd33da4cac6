"""Two runs side by side: ``fleet-tune compare``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet_tune.base.errors import RequestError
from fleet_tune.report.json_output import json_line
from fleet_tune.report.run import TaskName, plural
from fleet_tune.report.run_history import TaskHistory, read_history
from fleet_tune.report.words import NONE, format_secs

NAMES = ("A", "B")
"""Names of the two runs."""
TITLES = ("task", "calls", "trials A", "trials B", "A", "B", "B is faster by")
"""Columns of the table."""


@dataclass(frozen=True)
class TaskComparison:
    """A task that both runs have. Seconds are those of its best kernel, infinite if there is none."""

    name: str
    device_class: str
    calls: int
    secs: tuple[float, float]
    trials: tuple[int, int]

    @property
    def ratio(self) -> float | None:
        """Seconds in the first run divided by those in the second: above 1, the second is faster. None without two
        results."""
        first, second = self.secs
        return first / second if math.isfinite(first) and math.isfinite(second) else None


@dataclass(frozen=True)
class RunComparison:
    """Tasks of two runs."""

    folders: tuple[Path, Path]
    tasks: tuple[TaskComparison, ...]
    """Tasks that both runs have. Those whose seconds of all calls differ most come first, those without two results
    last."""
    others: tuple[int, int]
    """Number of tasks that only the first run has, and only the second."""

    @property
    def totals(self) -> tuple[float, float]:
        """Seconds of all calls of the tasks that have a result in both runs."""
        known = [task for task in self.tasks if task.ratio is not None]
        first, second = (sum(task.calls * task.secs[at] for task in known) for at in (0, 1))
        return first, second


def compare_runs(first: Path, second: Path) -> RunComparison:
    """Compare the runs of two output folders. Raises :class:`RequestError` for a folder without records, and if
    the runs have no task in common."""
    one, other = _tasks(first), _tasks(second)
    both = [_compared(one[task_id], other[task_id]) for task_id in one if task_id in other]
    if not both:
        raise RequestError(f"{first} and {second} have no task in common", "name two runs of the same network")
    both.sort(key=lambda task: -abs(task.calls * (task.secs[0] - task.secs[1])) if task.ratio is not None else math.inf)
    return RunComparison((first, second), tuple(both), (len(one) - len(both), len(other) - len(both)))


def _tasks(folder: Path) -> dict[str, TaskHistory]:
    return {each.task.id: each for each in read_history(folder).tasks}


def _compared(first: TaskHistory, second: TaskHistory) -> TaskComparison:
    task = first.task
    secs, trials = (first.best_secs, second.best_secs), (first.trials, second.trials)
    return TaskComparison(task.workload.name, task.device_class.name, task.weight, secs, trials)


def render_comparison(comparison: RunComparison, rows: int) -> RenderableType:
    """Render at most ``rows`` tasks, and the sums of all tasks."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("task")
    for title in TITLES[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    for task in comparison.tasks[:rows]:
        table.add_row(TaskName(task.name), *row_of(task))
    lines = [f"{name}: {folder}" for name, folder in zip(NAMES, comparison.folders, strict=True)]
    sums = sums_text(comparison)
    if sums:
        lines.append(f"All kernels, each timed alone: {sums}.")
    return Group(table, *map(Text, [*lines, *alone_lines(comparison)]))


def row_of(task: TaskComparison) -> tuple[str, ...]:
    """Return the texts of a task in the columns :data:`TITLES` after its name."""
    faster = NONE if task.ratio is None else f"{task.ratio:.2f}×"
    return (str(task.calls), *map(str, task.trials), *map(format_secs, task.secs), faster)


def sums_text(comparison: RunComparison) -> str:
    """Return the sums of both runs in words; empty if there are none."""
    first, second = comparison.totals
    if not (first and second):
        return ""
    return f"{format_secs(first)} in A, {format_secs(second)} in B, which is {first / second:.2f}× as fast"


def alone_lines(comparison: RunComparison) -> list[str]:
    """Return a line for each run with tasks that the other one lacks."""
    counts = zip(NAMES, comparison.others, strict=True)
    return [f"{plural(count, 'task')} of {name} alone." for name, count in counts if count]


def comparison_json(comparison: RunComparison) -> str:
    """Return one line of JSON text. Unknown seconds are null."""
    tasks = [
        {
            "name": task.name,
            "device_class": task.device_class,
            "calls": task.calls,
            "secs": _finite(task.secs),
            "trials": task.trials,
            "ratio": task.ratio,
        }
        for task in comparison.tasks
    ]
    body = {
        "folders": [str(folder) for folder in comparison.folders],
        "secs": comparison.totals,
        "others": comparison.others,
        "tasks": tasks,
    }
    return json_line(body)


def _finite(secs: Sequence[float]) -> list[float | None]:
    return [each if math.isfinite(each) else None for each in secs]
