"""A task in the plan of a run."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_tune.base.domain import Task


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A task of a run."""

    task: Task
    rules: tuple[str, ...] | None
    """Sketch rules by sketch: None while the task is being described, empty if it has no sketch."""
    floor_secs: float
    """Cost that no schedule can beat."""
    oracle_secs: float = 0.0
    """Longest time that one run of its oracle may take."""
    searcher: int = 0
    """Number of the searcher that knows it."""
    settled: str = ""
    """Reason why it needs no trial at all; empty if it is tuned."""
    confirmation_trials: int = 0
    """See :attr:`fleet_tune.base.search_task.SearchTask.confirmation_trials`."""
    late: bool = False
    """True for a task of a device class that joined during the run: the time budget does not wait for its
    description."""
