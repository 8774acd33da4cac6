"""Measured and pending candidates of a task, with their costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import Candidate
from fleet_tune.base.sketch import Sketch
from policies.arrays import Floats, Matrix
from policies.space.sampling import is_valid, row_keys


@dataclass(frozen=True)
class Observation:
    """The outcome of a candidate."""

    sketch: int
    """Position of the sketch among the task's."""
    decisions: tuple[int, ...]
    cost_secs: float
    """Seconds per run; infinite (or NaN) for a failure that blames the candidate."""
    revised: bool = False
    """True if the cost replaces the known cost of the candidate, even if it is higher."""
    weight: float = 1.0
    """Weight of the cost in training (see :attr:`fleet_tune.base.domain.Measurement.weight`)."""


@dataclass(frozen=True)
class Proposal:
    """A candidate that is worth a trial."""

    sketch: int
    """Position of the sketch among the task's."""
    decisions: tuple[int, ...]
    predicted_secs: float
    """Predicted seconds per run."""
    reason: str
    """Why the candidate was chosen."""

    def candidate(self, task_id: str, sketch_id: str) -> Candidate:
        """Return the candidate of a task, with the id of its sketch."""
        predicted_secs = self.predicted_secs if math.isfinite(self.predicted_secs) else None
        return Candidate(task_id, self.sketch, sketch_id, self.decisions, predicted_secs)


def as_matrix(rows: Iterable[Sequence[int] | NDArray[np.int64]], width: int) -> Matrix:
    """Decision vectors as a matrix, also if there are none or they are empty."""
    listed = list(rows)
    return np.array(listed, dtype=np.int64).reshape(len(listed), width)


def from_keys(keys: Iterable[bytes], width: int) -> Matrix:
    """The decision vectors of these keys."""
    listed = list(keys)
    return np.frombuffer(b"".join(listed), dtype=np.int64).reshape(len(listed), width)


class TaskRecords:
    """Measured and pending candidates of a task, by sketch. Candidates are told apart by their row keys."""

    def __init__(self, sketches: Sequence[Sketch]) -> None:
        self.sketches = tuple(sketches)
        # The cost of each measured candidate, infinite for a failure, in the order of first observation.
        self.costs: list[dict[bytes, float]] = [{} for _ in self.sketches]
        self._weights: list[dict[bytes, float]] = [{} for _ in self.sketches]
        self._pending: list[dict[bytes, None]] = [{} for _ in self.sketches]
        # Measured candidates in the order of first observation (by sketch within one call).
        self.order: list[tuple[int, bytes]] = []

    def key(self, sketch: int, decisions: tuple[int, ...]) -> bytes:
        """Return the row key of a candidate. Raise ValueError if the candidate is not of this task."""
        if not 0 <= sketch < len(self.sketches):
            raise ValueError(f"there is no sketch {sketch} in this task")
        width = self.sketches[sketch].width
        if len(decisions) != width:
            raise ValueError(f"sketch {sketch} has {width} columns, got {len(decisions)} decisions")
        return row_keys(as_matrix([decisions], width))[0]

    # -- changes --------------------------------------------------------------------------------------------------

    def add(self, observations: Iterable[Observation]) -> list[Matrix]:
        """Take in outcomes. Return the candidates of each sketch that were not measured before, in their order.

        A candidate measured before only changes if it is now faster (also after a failure), or its cost was revised.
        """
        fresh: list[list[tuple[int, ...]]] = [[] for _ in self.sketches]
        for outcome in observations:
            key = self.key(outcome.sketch, outcome.decisions)
            cost = outcome.cost_secs if math.isfinite(outcome.cost_secs) and outcome.cost_secs > 0 else math.inf
            self._pending[outcome.sketch].pop(key, None)
            costs = self.costs[outcome.sketch]
            if key not in costs:
                fresh[outcome.sketch].append(outcome.decisions)
                costs[key] = cost
            if outcome.revised or cost <= costs[key]:
                costs[key], self._weights[outcome.sketch][key] = cost, outcome.weight
        matrices = [as_matrix(rows, sketch.width) for rows, sketch in zip(fresh, self.sketches, strict=True)]
        for at, matrix in enumerate(matrices):
            self.order.extend((at, key) for key in row_keys(matrix))
        return matrices

    def mark(self, candidates: Iterable[Proposal]) -> None:
        """Add candidates that are now pending."""
        for candidate in candidates:
            self._pending[candidate.sketch][self.key(candidate.sketch, candidate.decisions)] = None

    def release(self, candidates: Iterable[Proposal | Candidate]) -> None:
        """Forget pending candidates that will never be measured; they may be proposed again."""
        for candidate in candidates:
            key = self.key(candidate.sketch, candidate.decisions)
            self._pending[candidate.sketch].pop(key, None)

    def release_all(self) -> None:
        """:meth:`release` every pending candidate."""
        for pending in self._pending:
            pending.clear()

    # -- questions ------------------------------------------------------------------------------------------------

    def knows(self, candidate: Proposal) -> bool:
        """Return true if a valid candidate was measured or is pending. Raise ValueError if it does not belong to its
        sketch."""
        key = self.key(candidate.sketch, candidate.decisions)
        sketch = self.sketches[candidate.sketch]
        if not is_valid(sketch, as_matrix([candidate.decisions], sketch.width))[0]:
            raise ValueError(f"{candidate.decisions} is no candidate of sketch {candidate.sketch}")
        return key in self.costs[candidate.sketch] or key in self._pending[candidate.sketch]

    def tried_keys(self, sketch: int) -> set[bytes]:
        """Keys of all candidates that are measured or pending."""
        return self.costs[sketch].keys() | self._pending[sketch].keys()

    def measured_rows(self, sketch: int) -> Matrix:
        return from_keys(self.costs[sketch], self.sketches[sketch].width)

    def pending_rows(self, sketch: int) -> Matrix:
        return from_keys(self._pending[sketch], self.sketches[sketch].width)

    def best_rows(self, sketch: int, count: int) -> Matrix | None:
        """The fastest measured candidates, at most ``count``; None if none succeeded."""
        good = sorted((cost, key) for key, cost in self.costs[sketch].items() if math.isfinite(cost))[:count]
        return from_keys((key for _, key in good), self.sketches[sketch].width) if good else None

    @property
    def best_secs(self) -> float:
        """Cost of the best measured candidate, infinite while there is none."""
        return float(self.bests.min())

    @property
    def bests(self) -> Floats:
        """Cost of the best candidate of each sketch, infinite where none succeeded."""
        return np.array([min(costs.values(), default=math.inf) for costs in self.costs])

    @property
    def measured(self) -> NDArray[np.int64]:
        """Number of measured candidates of each sketch."""
        return np.array([len(costs) for costs in self.costs], dtype=np.int64)

    @property
    def pending(self) -> NDArray[np.int64]:
        """Number of pending candidates of each sketch, without those measured before."""
        return np.array(
            [len(pending.keys() - costs.keys()) for costs, pending in zip(self.costs, self._pending, strict=True)],
            dtype=np.int64,
        )

    @property
    def ordered_costs(self) -> Floats:
        """Cost of every measured candidate of the task, in the order of first observation."""
        return np.array([self.costs[at][key] for at, key in self.order], dtype=np.float64)

    @property
    def ordered_weights(self) -> Floats:
        """Weight in training of every measured candidate of the task, in the order of first observation."""
        return np.array([self._weights[at][key] for at, key in self.order], dtype=np.float64)
