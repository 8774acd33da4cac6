"""Efforts in stores: the seconds and trials that runs have spent on their tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from fleet_tune.base.domain import Limits
from fleet_tune.base.records.sharing.shared import (
    SharedReader,
    class_of,
)
from fleet_tune.base.records.stores.origin import Effort
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.records.stores.store import RecordStore
from fleet_tune.base.results import TaskProgress
from policies.runs.warm_start import effort_of, share_of

SETTLED = "found in the store"
"""Reason why a task gets no trial."""


def note_efforts(
    own: Path,
    run_id: str,
    limits: Limits,
    tasks: Sequence[TaskProgress],
    elapsed_secs: float,
    new_trials: int,
    tried: Collection[str],
) -> None:
    """Store the effort of a run, and of earlier runs in its folder, on each task that the run tuned.

    Args:
        own: the store of the run, to which no other process writes now.
        run_id: the run.
        limits: the limits of the run.
        tasks: its tasks.
        elapsed_secs: seconds of its tuning.
        new_trials: trials of its tuning.
        tried: ids of the tasks that had trials in this run.
    """
    count = max(1, len(tasks))
    asked = share_of(limits, count)
    before = _spent_before(own, run_id)
    efforts = []
    for task in tasks:
        if task.described and task.finish_reason != SETTLED:
            is_tried = task.task_id in tried
            spent = effort_of(elapsed_secs, new_trials, count, task.finish_reason, asked, is_tried)
            if spent is not None:
                earlier = before.get(task.task_id, (0.0, 0.0))
                efforts.append(Effort(task.task_id, run_id, spent[0] + earlier[0], spent[1] + earlier[1]))
    with RecordStore(own) as store:
        store.put_efforts(efforts)


def _spent_before(own: Path, run_id: str) -> dict[str, tuple[float, float]]:
    """Return by task id the most seconds and trials that an earlier run in this folder with the same origin noted."""
    with SharedReader(own) as reader:
        origins = reader.run_origins()
        spent: dict[str, tuple[float, float]] = {}
        for effort, origin in reader.efforts():
            if effort.run_id != run_id and origins.get((run_id, class_of(effort.task_id))) == origin:
                most = spent.get(effort.task_id, (0.0, 0.0))
                spent[effort.task_id] = max(most[0], effort.secs), max(most[1], effort.trials)
    return spent


def tried_in(own: Path, after_seq: int = 0) -> set[str]:
    """Return the ids of the tasks that have trials after ``after_seq`` in the store of a run."""
    if not own.exists():
        return set()
    with RecordReader(own) as reader:
        return reader.tried(after_seq)
