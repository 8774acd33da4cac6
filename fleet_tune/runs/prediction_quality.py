"""Quality of the predictions of a run: rank correlation of predicted and measured run times."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fleet_tune.base.domain import Outcome, Record
from policies.cost_models.rank_quality import rank_correlation

LEAST = 8
"""Least number of trials of a task for which its correlation counts."""


@dataclass
class PredictionQuality:
    """Compares predictions with measurements, task by task: to compare predictions of different tasks tells nothing
    about the search."""

    last: int | None = None
    """Number of last trials of each task that count. None if all count."""
    _pairs: dict[str, deque[tuple[float, float]]] = field(default_factory=dict, init=False)
    _known: dict[str, float] = field(default_factory=dict, init=False, compare=False)
    """Correlation of each task whose pairs have not changed since."""

    def copy(self) -> PredictionQuality:
        """Return a copy of the present state."""
        copied = PredictionQuality(self.last)
        copied._pairs = {task_id: pairs.copy() for task_id, pairs in self._pairs.items()}
        copied._known = self._known.copy()
        return copied

    def observe(self, record: Record) -> None:
        """Take in a record. Revisions, failures and candidates without a prediction do not count."""
        predicted = record.candidate.predicted_secs
        if record.revision or predicted is None or record.measurement.outcome is not Outcome.OK:
            return
        pairs = self._pairs.setdefault(record.task_id, deque(maxlen=self.last))
        pairs.append((predicted, record.measurement.cost_secs))
        self._known.pop(record.task_id, None)

    def of_task(self, task_id: str) -> float | None:
        """Return Spearman's rank correlation of a task, from -1 to 1. None with fewer than :data:`LEAST` trials, or if
        the predictions or the measurements are all equal."""
        pairs = self._pairs.get(task_id, ())
        if len(pairs) < LEAST:
            return None
        if task_id not in self._known:
            predicted, measured = np.array(pairs).T
            self._known[task_id] = rank_correlation(predicted, measured)
        known = self._known[task_id]
        return None if np.isnan(known) else known

    def of_class(self, device_class: str) -> float | None:
        """Return the mean correlation of a class's tasks, weighted by their trials. None if no task has one."""
        return self.of_tasks(each for each in self._pairs if each.rpartition("@")[2] == device_class)

    def of_tasks(self, task_ids: Iterable[str]) -> float | None:
        """Return the mean correlation of some tasks, weighted by their trials. None if no task has one."""
        known = [(value, len(self._pairs[each])) for each in task_ids if (value := self.of_task(each)) is not None]
        trials = sum(number for _, number in known)
        return sum(value * number for value, number in known) / trials if trials else None
