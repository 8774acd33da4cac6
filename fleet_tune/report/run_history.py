"""The course of a run, read from its records."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fleet_tune.base.domain import Outcome, Record, Task
from fleet_tune.base.errors import RequestError
from fleet_tune.base.latency_estimate import estimated_secs
from fleet_tune.base.records.stores.codec import readable_records
from fleet_tune.base.records.stores.reader import RecordReader
from fleet_tune.runs.prediction_quality import PredictionQuality
from policies.retuning.benefit import Span, evidence, expected_share


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The estimated latency of a network from one record on."""

    secs: float
    """Seconds of tuning so far, without the time between two commands that tuned into the same folder."""
    trials: int
    network_secs: float
    """See :func:`estimated_secs`. Before a small task has a result, its first result counts, so that the curve never
    rises."""


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
    """By device class: a point for each record that changed the estimate, and one for the last record. Empty while the
    estimate is not known (:func:`estimated_secs`)."""
    secs: float
    trials: int
    measured_unix_secs: Mapping[str, Sequence[float]]
    """Times of the records of each device, by device id."""
    predictions: PredictionQuality
    """How well the search predicted."""

    def gain(self, device_class: str, share: float) -> float | None:
        """Return the part of the latency that the last ``share`` of the time took away. None if the curve
        begins later."""
        points = self.curves[device_class]
        before = [point for point in points if point.secs <= self.secs * (1 - share)]
        # The same sum in another order may differ in its last digit.
        return max(0.0, 1 - points[-1].network_secs / before[-1].network_secs) if before else None

    def expected_gain(self, device_class: str, more_secs: float) -> float | None:
        """Return the part of the latency that ``more_secs`` of further tuning are expected to take away, estimated from
        the last two doublings of the time (:mod:`policies.retuning.benefit`). None while the latency is not known."""
        points = self.curves[device_class]
        if not points or not self.secs > 0:
            return None
        spans = []
        for begin in (self.secs / 4, self.secs / 2):
            before, after = (
                [point.network_secs for point in points if point.secs <= moment][-1:] for moment in (begin, 2 * begin)
            )
            if before:
                spans.append(Span(begin, begin, math.log(before[0] / after[0])))
        return expected_share(evidence(spans).slope(), self.secs, more_secs)


def read_history(folder: Path) -> RunHistory:
    """Return the history of the run in an output folder; raises as :meth:`HistoryReader.read`."""
    return HistoryReader(folder).read()


def records_of(folder: Path) -> Path:
    """Return the record store of a run's output folder. Raises :class:`RequestError` if it has none."""
    path = folder / "records.db"
    if not path.is_file():
        raise RequestError(f"{folder} has no records.db", "name the output folder of a run ('fleet-tune tune --out')")
    return path


class HistoryReader:
    """Reads the history of a run again and again. It reads only new records, unless something changes the earlier part.

    Args:
        folder: output folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._course = _Course([], {}, {}, {})
        self._seq = 0
        """Number of the last record that was read."""
        self._created = ""
        """Time at which the last read store was made."""

    def read(self) -> RunHistory:
        """Return the history as it is now.

        Raises :class:`RequestError` for a folder without records, and :class:`RecordStoreError`.
        """
        with RecordReader(records_of(self._folder)) as reader:
            created = reader.meta()["created_unix_secs"]
            if created != self._created:  # another run has the folder now
                self._course, self._seq, self._created = _Course([], {}, {}, {}), 0, created
            speeds, calls, tasks = reader.speeds.shown(), reader.speeds.call_secs(), reader.tasks()
            new = _after(reader, self._seq)
            # A revision corrects the measurement of an earlier candidate.
            if self._course.is_of(tasks, speeds, calls) and not any(record.revision for record in new):
                self._course.extend(new)
            else:
                everything = _after(reader, 0) if self._seq else new
                self._course = _Course(tasks, speeds, calls, _revised_ranks(everything))
                self._course.extend(everything)
                new = everything
            self._seq = max([self._seq, *(record.seq for record in new)])
            for task_id in {record.task_id for record in new} & self._course.tasks.keys():
                task = self._course.tasks[task_id]
                task.best = reader.best(task_id)
                task.best_secs = math.inf if task.best is None else reader.shown_secs(task.best)
        return self._course.history()


def _after(reader: RecordReader, seq: int) -> list[Record]:
    """Return the records after ``seq``, without the traces that are kept beside them: no caller needs them."""
    records: list[Record] = []
    while rows := reader.encoded_since(seq):
        records += readable_records(rows)
        seq = rows[-1][0]
    return records


def _revised_ranks(records: Iterable[Record]) -> dict[tuple[str, str], float]:
    """Return the seconds of each candidate that was measured again, from its last revision that says something: one
    that was verified, or that failed."""
    ranks: dict[tuple[str, str], float] = {}
    for record in records:
        measured = record.measurement
        if record.revision and (measured.verified or measured.outcome is not Outcome.OK):
            ranks[record.task_id, record.candidate.id] = measured.rank_secs
    return ranks


class _Course:
    """The course of a run up to some record.

    Args:
        tasks: tasks of the run.
        speeds: speed at which the seconds of each device class are shown.
        call_secs: seconds by which a call takes longer in the network than a kernel alone, by device class.
        revised: seconds of the candidates that were measured again.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        speeds: Mapping[str, float],
        call_secs: Mapping[str, float],
        revised: Mapping[tuple[str, str], float],
    ) -> None:
        self.tasks = {task.id: TaskHistory(task) for task in tasks}
        self._speeds, self._call_secs, self._revised = speeds, call_secs, revised
        self._best: dict[str, float] = dict.fromkeys(self.tasks, math.inf)
        self._curves: dict[str, list[CurvePoint]] = {task.device_class.name: [] for task in tasks}
        self._by_class = {name: [task for task in tasks if task.device_class.name == name] for name in self._curves}
        self._measured: dict[str, array[float]] = {}
        self._predictions = PredictionQuality()
        self._secs, self._trials = 0.0, 0
        self._before: Record | None = None

    def is_of(self, tasks: Sequence[Task], speeds: Mapping[str, float], call_secs: Mapping[str, float]) -> bool:
        """Return true if the run still has these tasks, speeds and call times."""
        if (self._speeds, self._call_secs) != (speeds, call_secs):
            return False
        return [each.task for each in self.tasks.values()] == list(tasks)

    def extend(self, records: Iterable[Record]) -> None:
        """Take in the next records."""
        for record in records:
            if self._before is not None and self._before.run_id == record.run_id:
                self._secs += max(0.0, record.unix_secs - self._before.unix_secs)
            self._before = record
            self._measured.setdefault(record.device_id, array("d")).append(record.unix_secs)
            self._predictions.observe(record)
            task = self.tasks.get(record.task_id)
            if task is not None:
                self._take(record, task)

    def _take(self, record: Record, task: TaskHistory) -> None:
        if not record.revision:
            self._trials += 1
            task.trials += 1
            task.outcomes[record.measurement.outcome] += 1
            if record.measurement.detail:
                task.failures.setdefault(record.measurement.outcome, record.measurement.detail)
        reached = self._shown_secs(record)
        if math.isinf(task.first_secs):
            task.first_secs = reached
        before = self._best[record.task_id]
        if reached < before:
            self._best[record.task_id] = reached
            name = task.task.device_class.name
            if math.isinf(before):  # a small task, which was left out: its first result counts from the beginning
                added = task.task.weight * reached
                self._curves[name] = [
                    replace(point, network_secs=point.network_secs + added) for point in self._curves[name]
                ]
            tasks = self._by_class[name]
            bests = [(each.weight, each.workload.flop, self._best[each.id]) for each in tasks]
            network_secs = estimated_secs(bests, self._call_secs.get(name, 0.0))
            if math.isfinite(network_secs):
                self._curves[name].append(CurvePoint(self._secs, self._trials, network_secs))

    def _shown_secs(self, record: Record) -> float:
        """Return the seconds of a record's candidate as people see them. Infinite if it does not count."""
        rank = self._revised.get((record.task_id, record.candidate.id), record.measurement.rank_secs)
        device_class = record.task_id.rpartition("@")[2]
        return rank / self._speeds.get(device_class, 1.0) if record.measurement.verified else math.inf

    def history(self) -> RunHistory:
        """Return all that is known by now."""
        curves = {
            name: (*points, CurvePoint(self._secs, self._trials, points[-1].network_secs)) if points else ()
            for name, points in self._curves.items()
        }
        tasks = tuple(
            replace(each, outcomes=Counter(each.outcomes), failures=dict(each.failures)) for each in self.tasks.values()
        )
        measured = {device: times[:] for device, times in self._measured.items()}
        return RunHistory(tasks, curves, self._secs, self._trials, measured, self._predictions.copy())
