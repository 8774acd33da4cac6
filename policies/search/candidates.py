"""Candidates of one sketch as arrays: what generators offer, predictors score and a batch is chosen from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats, Matrix
from policies.search.task_records import Proposal, as_matrix
from policies.space.sampling import row_keys


@dataclass(frozen=True)
class CandidateSet:
    """Distinct candidates of one sketch, the best first."""

    matrix: Matrix
    """Decisions, ``(n, d)``."""
    features: NDArray[np.float32]
    """Symbolic features, ``(n, f)``."""
    analytic_log_secs: Floats
    """Log seconds by the analyzer alone, ``(n,)``, NaN for a sketch that is not described."""
    log_secs: Floats
    """Fitness by which a generator ranks, ``(n,)``: log seconds, infinite for candidates that are not worth
    building."""
    mean: Floats
    """Predicted log seconds, ``(n,)``, once a :class:`policies.search.prediction.Predictor` has set them."""
    deviation: Floats
    """Deviation of the prediction, ``(n,)``."""
    sketch: int = 0
    """Position of the sketch among the task's, set with the prediction."""

    @classmethod
    def unpredicted(
        cls, matrix: Matrix, features: NDArray[np.float32], analytic_log_secs: Floats, log_secs: Floats
    ) -> CandidateSet:
        """A set that no predictor has seen."""
        nothing = np.full(len(matrix), np.nan)
        return cls(matrix, features, analytic_log_secs, log_secs, nothing, nothing)

    def __len__(self) -> int:
        return len(self.matrix)

    def take(self, rows: NDArray[np.intp]) -> CandidateSet:
        """The candidates in these rows."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _ARRAYS})

    def followed_by(self, other: CandidateSet) -> CandidateSet:
        """These candidates, then others of the same sketch."""
        both: dict[str, Any] = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in _ARRAYS}
        return replace(self, **both)

    def without(self, proposals: Iterable[Proposal]) -> CandidateSet:
        """All candidates but the proposed ones."""
        decisions = [each.decisions for each in proposals if each.sketch == self.sketch]
        known = set(row_keys(as_matrix(decisions, self.matrix.shape[1])))
        return self.take(np.flatnonzero([key not in known for key in row_keys(self.matrix)]))

    def proposal(self, row: int, reason: str) -> Proposal:
        """The proposal of the candidate in a row."""
        decisions = tuple(int(value) for value in self.matrix[row])
        return Proposal(self.sketch, decisions, math.exp(float(self.mean[row])), reason)


_ARRAYS = tuple(field.name for field in fields(CandidateSet) if field.name != "sketch")
