"""The course of a run, read from its records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fleet_tune.base.domain import Outcome, Record, Task
from fleet_tune.base.errors import RequestError
from fleet_tune.base.records.stores.reader import RecordReader


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The estimated latency of a network from one record on."""

    secs: float
    """Seconds of tuning so far, without the time between two commands that tuned into the same folder."""
    trials: int
    network_secs: float
    """Sum over the tasks of calls times best."""


@dataclass
class TaskHistory:
    """The trials of one task."""

    task: Task
    trials: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    """The first message of each kind of failure."""
    first_secs: float = math.inf
    """Seconds of the first candidate that counted."""
    best: Record | None = None
    best_secs: float = math.inf


@dataclass(frozen=True)
class RunHistory:
    """All that the records of a run tell."""

    tasks: tuple[TaskHistory, ...]
    curves: dict[str, tuple[CurvePoint, ...]]
    """By device class: a point for each record that made the estimate smaller, and one for the last record. Empty
    until every task has a result."""
    secs: float
    trials: int

    def gain(self, device_class: str, share: float) -> float | None:
        """Return the part of the latency that the last ``share`` of the time took away. None for a curve that is
        younger."""
        points = self.curves[device_class]
        before = [point for point in points if point.secs <= self.secs * (1 - share)]
        return 1 - points[-1].network_secs / before[-1].network_secs if before else None


def read_history(folder: Path) -> RunHistory:
    """Return the history of the run in an output folder.

    Raises :class:`RequestError` for a folder without records, and :class:`RecordStoreError`.
    """
    path = folder / "records.db"
    if not path.is_file():
        raise RequestError(f"{folder} has no records.db", "name the output folder of a run ('fleet-tune tune --out')")
    with RecordReader(path) as reader:
        tasks = {task.id: TaskHistory(task) for task in reader.tasks()}
        ranks = _Ranks(reader)
        for task in tasks.values():
            task.best = reader.best(task.task.id)
            if task.best is not None:
                task.best_secs = reader.shown_secs(task.best)
        return _history(tasks, ranks, reader)


class _Ranks:
    """Seconds of each candidate by the last that is known of it."""

    def __init__(self, reader: RecordReader) -> None:
        self._speeds = reader.shown_speeds()
        self._known: dict[tuple[str, str], float] = {}
        for record in reader:
            measured = record.measurement
            if record.revision and (measured.verified or measured.outcome is not Outcome.OK):
                self._known[record.task_id, record.candidate.id] = measured.rank_secs

    def secs(self, record: Record) -> float:
        """Return the seconds of a record's candidate as people see them. Infinite where it does not count."""
        rank = self._known.get((record.task_id, record.candidate.id), record.measurement.rank_secs)
        device_class = record.task_id.rpartition("@")[2]
        return rank / self._speeds.get(device_class, 1.0) if record.measurement.verified else math.inf


def _history(tasks: dict[str, TaskHistory], ranks: _Ranks, records: Iterable[Record]) -> RunHistory:
    best: dict[str, float] = dict.fromkeys(tasks, math.inf)
    curves: dict[str, list[CurvePoint]] = {task.task.device_class.name: [] for task in tasks.values()}
    by_class = {name: [each.task for each in tasks.values() if each.task.device_class.name == name] for name in curves}
    secs, trials = 0.0, 0
    before: Record | None = None
    for record in records:
        if before is not None and before.run_id == record.run_id:
            secs += max(0.0, record.unix_secs - before.unix_secs)
        before = record
        task = tasks.get(record.task_id)
        if task is None:
            continue
        if not record.revision:
            trials += 1
            task.trials += 1
            task.outcomes[record.measurement.outcome] += 1
            if record.measurement.detail:
                task.failures.setdefault(record.measurement.outcome, record.measurement.detail)
        reached = ranks.secs(record)
        if math.isinf(task.first_secs):
            task.first_secs = reached
        if reached < best[record.task_id]:
            best[record.task_id] = reached
            name = task.task.device_class.name
            _extend(curves[name], CurvePoint(secs, trials, _network_secs(by_class[name], best)))
    for points in curves.values():
        if points:
            points.append(CurvePoint(secs, trials, points[-1].network_secs))
    finished = {name: tuple(points) for name, points in curves.items()}
    return RunHistory(tuple(tasks.values()), finished, secs, trials)


def _network_secs(tasks: Sequence[Task], best: dict[str, float]) -> float:
    return sum(task.weight * best[task.id] for task in tasks)


def _extend(points: list[CurvePoint], point: CurvePoint) -> None:
    if math.isfinite(point.network_secs):
        points.append(point)
