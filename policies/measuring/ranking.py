"""The candidates of a task by what is known of their costs: for each of them the last word of its records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fleet_tune.domain import Candidate, Incumbent, Outcome, Record
from policies.measuring.shootout import MAX_FINALISTS, MAX_MARGIN, Standing, finalists


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate that ran. ``verified``: by this or by an earlier record, so that it may be the incumbent."""

    candidate: Candidate
    standing: Standing
    rank_secs: float
    verified: bool


class Ranking:
    """What the records of one task say, one after the other."""

    def __init__(self) -> None:
        self._ranked: dict[str, Ranked] = {}
        self._revisions: dict[str, int] = {}
        self._met: set[str] = set()  # in a final round
        self._best: Ranked | None = None

    def add(self, record: Record) -> None:
        """The next record of the task. A revision takes the place of what was known; a trial does so only where no
        revision has come."""
        candidate, measured = record.candidate, record.measurement
        if record.revision < self._revisions.get(candidate.id, 0) or not measured.outcome.blames_candidate:
            return
        if record.revision:
            self._revisions[candidate.id] = record.revision
        before = self._ranked.pop(candidate.id, None)
        if measured.outcome is Outcome.OK:
            if record.revision and measured.verified:
                self._met.add(candidate.id)
                if measured.comparison is not None:
                    self._met.add(measured.comparison.against)
            standing = Standing(candidate.id, measured.cost_secs, measured.error)
            verified = measured.verified or (before is not None and before.verified)
            met = measured.comparison
            rank_secs = standing.cost_secs * (1 + standing.error) if met is None else met.rank_secs
            ranked = Ranked(candidate, standing, rank_secs, verified)
            self._ranked[candidate.id] = ranked
            if verified and (self._best is None or ranked.rank_secs < self._best.rank_secs):
                self._best = ranked
                return
        if before is not None and before is self._best:
            verified_ones = [each for each in self._ranked.values() if each.verified]
            self._best = min(verified_ones, key=lambda each: each.rank_secs, default=None)

    @property
    def best(self) -> Candidate | None:
        """The incumbent."""
        return None if self._best is None else self._best.candidate

    @property
    def best_secs(self) -> float:
        """Its cost, infinite while there is none."""
        return math.inf if self._best is None else self._best.standing.cost_secs

    @property
    def incumbent(self) -> Incumbent:
        """The incumbent as devices are told of it."""
        best = self._best
        return Incumbent() if best is None else Incumbent(best.candidate.id, best.standing.cost_secs, best.rank_secs)

    def next_revision(self, candidate_id: str) -> int:
        """The number of the next revision of a candidate."""
        return self._revisions.get(candidate_id, 0) + 1

    def near_best(self, candidate_id: str) -> bool:
        """Whether a candidate may still be among the finalists; also one of which nothing is known yet."""
        ranked = self._ranked.get(candidate_id)
        return ranked is None or ranked.standing.cost_secs <= self.best_secs * (1 + MAX_MARGIN)

    def finalists(self) -> tuple[Candidate, ...]:
        """Between which candidates a shoot-out decides (see :func:`policies.measuring.shootout.finalists`), the
        incumbent first: some may have a lower cost and were never checked."""
        standings = (replace(each.standing, decided=each.candidate.id in self._met) for each in self._ranked.values())
        chosen = [self._ranked[candidate_id].candidate for candidate_id in finalists(standings)]
        best = self.best
        if chosen and best is not None:
            chosen = [best, *(each for each in chosen if each != best)][:MAX_FINALISTS]
        return tuple(chosen)
