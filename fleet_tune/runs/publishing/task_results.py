"""Results of the tasks of a run from its record store, for users."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fleet_tune.base.domain import Measurement, Outcome, Task
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.base.results import TaskProgress


def task_results(tasks: Iterable[Task], rules: Mapping[str, str], records: Path) -> tuple[TaskProgress, ...]:
    """Return the progress of each task from its records."""
    with RecordReader(records) as reader:
        return tuple(_task_result(task, rules, reader) for task in tasks)


def _task_result(task: Task, rules: Mapping[str, str], reader: RecordReader) -> TaskProgress:
    record = reader.best(task.id)
    return TaskProgress(
        task_id=task.id,
        name=task.workload.name,
        device_class=task.device_class.name,
        weight=task.weight,
        flop=task.workload.flop,
        sketches=0,
        trials=sum(reader.counts(task.id).values()),
        best_secs=reader.shown_secs(record) if record else float("inf"),
        best_rule=rules.get(record.candidate.sketch_id, "") if record else "",
    )


_REASONS = {
    Outcome.BUILD_ERROR: "the network cannot be compiled with its best",
    Outcome.RUN_ERROR: "the network crashes with its best",
}


def reason_of(faults: Sequence[Measurement]) -> str:
    """Return the reason why a task's best records are not in the network."""
    last = faults[-1]
    what = _REASONS.get(last.outcome, "its best is wrong in the network")
    return f"{what} ({last.detail})" if len(faults) == 1 else f"{what} {len(faults)} ({last.detail})"
