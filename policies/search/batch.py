"""Selection of a batch among offered candidates: acquisition, diversity, and distance from measured and pending
candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policies.arrays import Floats, Matrix
from policies.search.acquisition import Acquisition
from policies.search.candidates import CandidateSet
from policies.search.selection import greedy, neighbourhood_discount
from policies.search.task_records import Proposal, TaskRecords
from policies.space.sampling import decision_ids, log_coordinates

MEASURED_RADIUS = 0.7
"""Radius around measured candidates, relative to the radius around pending ones. Neighbours of measured candidates
teach little. Set by hand; only the effect of both radii together was measured (:mod:`policies.search.methods.fleet`).
"""
APART = 1e3
"""Distance in coordinates between candidates of different sketches, so that they are no neighbours. Any value far
beyond a radius has the same effect."""


@dataclass(frozen=True)
class Selection:
    """Settings of the selection of a batch among the offered candidates."""

    alpha: float = 0.0
    """Weight of diversity (AutoTVM equation 3)."""
    top_factor: float | None = None
    """AutoTVM's lambda: the candidates of a batch that the model chooses are selected among so many times as many best
    candidates. None: among all. The random candidates of a batch do not count."""
    radius: float = 0.0
    """Radius of the discounted neighbourhood of pending candidates, in doublings of a tile factor."""
    contested: float = 0.0
    """Share of a batch for which the candidates of all sketches compete by their scores; the rest goes to the sketches
    that the bandit chooses."""

    def enough(self, count: int) -> int:
        """Least number of the best candidates that a batch of ``count`` is selected from."""
        return math.ceil((self.top_factor or 1.0) * count)


def choose(
    offered: Sequence[CandidateSet],
    shares: NDArray[np.int64],
    records: TaskRecords,
    acquisition: Acquisition,
    selection: Selection,
    count: int,
    reason: str,
    *,
    joint: bool,
) -> list[Proposal]:
    """Choose up to ``count`` of the offered candidates, the best first, and up to ``shares[sketch]`` of each sketch.

    ``reason``: the reason of the proposals, to which the score is added. ``joint``: sketches compete, and candidates
    are chosen together by their scores alone.
    """
    offered = [each for each in offered if len(each)]
    if not offered or count <= 0:
        return []
    best_secs = records.best_secs
    # If nothing is measured, the gain is over the slowest offered candidate, which is the same for all sketches.
    slowest = max(float(each.mean.max()) for each in offered)
    incumbent_secs = best_secs if math.isfinite(best_secs) else math.exp(slowest)
    scored = []
    for each in offered:
        scores = acquisition(each.mean, each.deviation, incumbent_secs)
        scored.append((each, _adjusted(scores, each, records, selection)))
    if joint:
        chosen = _together(scored, records, selection, count, reason)
    else:
        chosen = [
            each
            for pair in scored
            for each in _together([pair], records, selection, min(int(shares[pair[0].sketch]), count), reason)
        ]
        chosen.sort(key=lambda each: -each[0])
    return [proposal for _, proposal in chosen[:count]]


def _adjusted(scores: Floats, each: CandidateSet, records: TaskRecords, selection: Selection) -> Floats:
    """The scores, with the neighbourhood of known candidates discounted."""
    if selection.radius > 0:
        sketch = records.sketches[each.sketch]
        points = log_coordinates(sketch, each.matrix)
        pending = log_coordinates(sketch, records.pending_rows(each.sketch))
        measured = log_coordinates(sketch, records.measured_rows(each.sketch))
        scores = scores * neighbourhood_discount(points, pending, selection.radius)
        scores = scores * neighbourhood_discount(points, measured, MEASURED_RADIUS * selection.radius)
    return scores


def _together(
    scored: Sequence[tuple[CandidateSet, Floats]], records: TaskRecords, selection: Selection, count: int, reason: str
) -> list[tuple[float, Proposal]]:
    """Greedy choice among the candidates of one or several sketches, with the scores."""
    scores = np.concatenate([values for _, values in scored])
    owner = np.repeat(np.arange(len(scored)), [len(each) for each, _ in scored])
    row = np.concatenate([np.arange(len(each)) for each, _ in scored])
    if selection.top_factor is not None:
        # AutoTVM chooses among the top lambda * b candidates.
        top = np.argsort(-scores, kind="stable")[: selection.enough(count)]
        top.sort()
        scores, owner, row = scores[top], owner[top], row[top]
    components, points, covered = _decisions(scored, owner, row, records)
    chosen = greedy(scores, components, points, count, selection.alpha, selection.radius, covered)
    values = [float(scores[at]) for at in chosen]
    return [
        (score, scored[owner[at]][0].proposal(int(row[at]), f"{reason} {score:.3g}"))
        for at, score in zip(chosen, values, strict=True)
    ]


def _decisions(
    scored: Sequence[tuple[CandidateSet, Floats]], owner: NDArray[np.intp], row: NDArray[np.intp], records: TaskRecords
) -> tuple[Matrix, Floats, Matrix]:
    """Components and coordinates of the candidates, and components of the pending ones, in columns for all sketches.

    Sketches share no component: the sketch's number is part of each component's id.
    """
    sketches = [records.sketches[each.sketch] for each, _ in scored]
    width = max(len(sketch.decisions) for sketch in sketches)
    dimensions = max(sketch.width for sketch in sketches)
    components = np.full((len(row), width), -1, dtype=np.int64)
    points = np.zeros((len(row), dimensions + 1))
    covered = []
    for at, ((each, _), sketch) in enumerate(zip(scored, sketches, strict=True)):
        mine = owner == at
        matrix = each.matrix[row[mine]]
        pending = records.pending_rows(each.sketch)
        ids = decision_ids(sketch, np.concatenate([matrix, pending])) * len(sketches) + at
        components[mine, : ids.shape[1]] = ids[: len(matrix)]
        points[mine, : sketch.width] = log_coordinates(sketch, matrix)
        points[mine, dimensions] = APART * at
        under_way = np.full((len(pending), width), -1, dtype=np.int64)
        under_way[:, : ids.shape[1]] = ids[len(matrix) :]
        covered.append(under_way)
    return components, points, np.concatenate(covered)
