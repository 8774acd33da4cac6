"""Measured candidates as columns: what searches, cost models and analyses learn from, without TVM and without files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import Candidate, DeviceAbstraction, Fingerprint, Outcome, Record, StopRule, Task
from fleet_tune.base.sketch import Choice, Decision, Location, Sketch, Tile

OUTCOMES = tuple(Outcome)
"""Outcomes by their number in :attr:`TaskData.outcome`; new outcomes are appended."""

MEASURED_BY = StopRule(micro_batch_secs=0.01, race_factor=math.inf, timeout_factor=math.inf)
"""The rule by which datasets are measured. Slow candidates are measured to the end too, because cost models learn from
their times."""

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TaskData:
    """The measured candidates of one task, ``n`` of them in the order of their first measurement, each only once.

    ``sketch_of``: (n,) int64, index into ``sketches``. ``decisions``: for every sketch the (n_i, d_i) int64 matrix of
    its candidates, in their order. ``run_secs``: (n, b) float32, mean seconds per run of each micro-batch, NaN after
    the last; all NaN for a failure. ``build_secs``, ``measure_secs``: (n,) float64. ``outcome``: (n,) int64, index into
    :data:`OUTCOMES`. ``details``: error text of each failure, empty for successes.

    Raise ValueError if the parts do not fit each other.
    """

    task: Task
    abstraction: DeviceAbstraction
    sketches: tuple[Sketch, ...]
    sketch_of: Integers
    decisions: tuple[Integers, ...]
    run_secs: NDArray[np.float32] = field(repr=False)
    build_secs: Floats = field(repr=False)
    measure_secs: Floats = field(repr=False)
    outcome: Integers = field(repr=False)
    details: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        count = len(self.sketch_of)
        columns = (self.run_secs, self.build_secs, self.measure_secs, self.outcome, self.details)
        if any(len(column) != count for column in columns):
            raise ValueError("the columns of a task's data differ in length")
        if len(self.decisions) != len(self.sketches):
            raise ValueError(f"{len(self.decisions)} matrices for {len(self.sketches)} sketches")
        counts = np.bincount(self.sketch_of, minlength=len(self.sketches)) if count else np.zeros(len(self.sketches))
        if len(counts) != len(self.sketches):
            raise ValueError("a candidate of a sketch that is not there")
        for sketch, matrix, rows in zip(self.sketches, self.decisions, counts, strict=True):
            if matrix.shape != (rows, sketch.width):
                raise ValueError(f"a matrix of {matrix.shape} for {rows} candidates of {sketch.width} columns")
        if self.run_secs.ndim != 2:
            raise ValueError("run_secs is a matrix: a row for each candidate")
        if count and (self.outcome.min() < 0 or self.outcome.max() >= len(OUTCOMES)):
            raise ValueError("an unknown outcome")
        timed = np.isfinite(self.run_secs)
        if not np.array_equal(timed.any(axis=1), self.ok):
            raise ValueError("run times belong to successes and to them alone")
        if not (self.run_secs[timed] > 0).all():
            raise ValueError("run times must be positive")

    def __len__(self) -> int:
        return len(self.sketch_of)

    @cached_property
    def ok(self) -> NDArray[np.bool_]:
        """(n,): true if the candidate ran."""
        ran: NDArray[np.bool_] = self.outcome == OUTCOMES.index(Outcome.OK)
        return ran

    @cached_property
    def cost_secs(self) -> Floats:
        """(n,): median seconds per run over the micro-batches; infinite for a failure."""
        costs = np.full(len(self), np.inf)
        costs[self.ok] = np.nanmedian(self.run_secs[self.ok].astype(np.float64), axis=1)
        return costs

    @cached_property
    def spread(self) -> Floats:
        """(n,): coefficient of variation of the micro-batches (deviation over mean); NaN for a failure."""
        spread = np.full(len(self), np.nan)
        timed = self.run_secs[self.ok].astype(np.float64)
        spread[self.ok] = np.nanstd(timed, axis=1) / np.nanmean(timed, axis=1)
        return spread

    @cached_property
    def row_of(self) -> Integers:
        """(n,): the row of the candidate in its sketch's matrix."""
        rows = np.zeros(len(self), dtype=np.int64)
        for at in range(len(self.sketches)):
            mine = self.sketch_of == at
            rows[mine] = np.arange(mine.sum())
        return rows

    def rows(self, sketch: int) -> Integers:
        """Return the positions in the columns of the candidates of a sketch, in the order of its matrix."""
        return np.flatnonzero(self.sketch_of == sketch)

    @property
    def best_secs(self) -> float:
        """Cost of the best candidate; infinite if none ran."""
        return float(self.cost_secs.min(initial=np.inf))

    def candidate(self, at: int) -> Candidate:
        """Return the candidate at position ``at``."""
        sketch = self.sketches[int(self.sketch_of[at])]
        vector = self.decisions[sketch.index][int(self.row_of[at])]
        return Candidate(self.task.id, sketch.index, sketch.id, tuple(int(value) for value in vector))

    def batches(self, at: int) -> tuple[float, ...]:
        """Return the mean seconds per run of each micro-batch of candidate ``at``; empty for a failure."""
        row = self.run_secs[at]
        return tuple(float(secs) for secs in row[np.isfinite(row)])

    def with_sketches(self, sketches: Sequence[Sketch]) -> tuple[TaskData, int]:
        """Return the same measurements on sketches that were derived anew, matched by their ids.

        The second value is the number of skipped candidates: their sketch is not among these or has lost the choice
        that they made.
        """
        index = {sketch.id: sketch.index for sketch in sketches}
        positions: list[Integers] = []
        matrices: list[Integers] = [np.empty((0, sketch.width), dtype=np.int64) for sketch in sketches]
        owner = np.full(len(self), -1, dtype=np.int64)
        for at, old in enumerate(self.sketches):
            new = index.get(old.id)
            if new is None:
                continue
            matrix, valid = _translated(self.decisions[at], old.decisions, sketches[new].decisions)
            matrices[new] = matrix[valid]
            owner[self.rows(at)[valid]] = new
            positions.append(self.rows(at)[valid])
        rows = np.sort(np.concatenate(positions)) if positions else np.empty(0, dtype=np.int64)
        return dataclasses.replace(
            self,
            sketches=tuple(sketches),
            sketch_of=owner[rows],
            decisions=tuple(matrices),
            run_secs=self.run_secs[rows],
            build_secs=self.build_secs[rows],
            measure_secs=self.measure_secs[rows],
            outcome=self.outcome[rows],
            details=tuple(self.details[row] for row in rows),
        ), len(self) - len(rows)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Measured candidates of several tasks. ``network``: the network that they came from; ``fingerprints``:
    descriptions of the devices, one for each device class."""

    network: str
    fingerprints: tuple[Fingerprint, ...]
    tasks: tuple[TaskData, ...]

    def __iter__(self) -> Iterator[TaskData]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, at: int) -> TaskData:
        return self.tasks[at]

    @property
    def candidates(self) -> int:
        """Number of candidates of all tasks."""
        return sum(map(len, self.tasks))


def by_task(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return records by task id, in their order. They have no traces, which are most of their size."""
    by_id: dict[str, list[Record]] = {}
    for record in records:
        by_id.setdefault(record.task_id, []).append(dataclasses.replace(record, trace=""))
    return by_id


def task_data(
    task: Task, abstraction: DeviceAbstraction, sketches: Sequence[Sketch], records: Iterable[Record]
) -> tuple[TaskData, int]:
    """Return the data of ``task`` in ``records`` (records of other tasks are ignored), and the number of records that
    are skipped because their sketch is not among ``sketches`` or has another number of columns.

    Records whose outcome does not blame the candidate are ignored. If a candidate was measured again, the measurement
    with more micro-batches counts; if both have as many, the later one.
    """
    index = {sketch.id: sketch.index for sketch in sketches}
    best: dict[str, Record] = {}
    unknown = 0
    for record in records:
        if record.task_id != task.id or not record.measurement.outcome.blames_candidate:
            continue
        owner = index.get(record.candidate.sketch_id)
        if owner is None or len(record.candidate.decisions) != sketches[owner].width:
            unknown += 1
            continue
        before = best.get(record.candidate.id)
        if before is None or len(record.measurement.run_secs) >= len(before.measurement.run_secs):
            best[record.candidate.id] = record
    chosen = list(best.values())
    sketch_of = np.array([index[record.candidate.sketch_id] for record in chosen], dtype=np.int64)
    matrices = []
    for at, sketch in enumerate(sketches):
        rows = [record.candidate.decisions for record, owner in zip(chosen, sketch_of, strict=True) if owner == at]
        matrices.append(np.array(rows, dtype=np.int64).reshape(len(rows), sketch.width))
    run_secs = np.full((len(chosen), max((len(r.measurement.run_secs) for r in chosen), default=0)), np.nan, np.float32)
    for row, record in enumerate(chosen):
        measured = record.measurement
        run_secs[row, : len(measured.run_secs)] = np.array(measured.run_secs) * measured.speed
    return TaskData(
        task=task,
        abstraction=abstraction,
        sketches=tuple(sketches),
        sketch_of=sketch_of,
        decisions=tuple(matrices),
        run_secs=run_secs,
        build_secs=np.array([record.measurement.build_secs for record in chosen], dtype=np.float64),
        measure_secs=np.array([record.measurement.measure_secs for record in chosen], dtype=np.float64),
        outcome=np.array([OUTCOMES.index(record.measurement.outcome) for record in chosen], dtype=np.int64),
        details=tuple(record.measurement.detail for record in chosen),
    ), unknown


def _translated(
    matrix: Integers, old: Sequence[Decision], new: Sequence[Decision]
) -> tuple[Integers, NDArray[np.bool_]]:
    """Return decision vectors in the columns of a newer description of the same trace, and a mask of the vectors that
    are still valid.

    Factors of tiles stay as they are; an index into choices or locations is changed to the new index of its value.
    """
    valid = np.ones(len(matrix), dtype=np.bool_)
    if [(type(each), each.width) for each in old] != [(type(each), each.width) for each in new]:
        return np.empty((len(matrix), sum(d.width for d in new)), dtype=np.int64), ~valid
    moved = matrix.copy()
    at = 0
    for before, after in zip(old, new, strict=True):
        if isinstance(before, Tile) and isinstance(after, Tile):
            fits = matrix[:, at + before.parts - 1] <= after.innermost_limit
            valid &= fits & (before.extent == after.extent)
        elif isinstance(before, Choice) and isinstance(after, Choice):
            moved[:, at], there = _moved(matrix[:, at], before.values, after.values)
            valid &= there
        elif isinstance(before, Location) and isinstance(after, Location):
            moved[:, at], there = _moved(matrix[:, at], before.locations, after.locations)
            valid &= there
        at += before.width
    return moved, valid


def _moved(column: Integers, old: Sequence[int], new: Sequence[int]) -> tuple[Integers, NDArray[np.bool_]]:
    table = np.array([new.index(value) if value in new else -1 for value in old], dtype=np.int64)
    moved = table[column] if len(column) else column
    return np.maximum(moved, 0), moved >= 0
