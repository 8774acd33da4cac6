"""The candidates of a task, ranked by their costs. The last record of a candidate that counts decides its cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fleet_tune.base.domain import Candidate, Incumbent, Measurement, Outcome, Record
from policies.measuring.duel import STOPPED
from policies.measuring.shootout import MAX_FINALISTS, MAX_MARGIN, CostEstimate, finalists


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate that ran."""

    candidate: Candidate
    measurement: Measurement
    cost_secs: float
    """Cost of the measurement. Its other figures are computed on demand: most of a million records never need them."""
    verified: bool
    """True if this or an earlier record verified the candidate, so that it may be the incumbent."""

    @property
    def rank_secs(self) -> float:
        """Seconds by which it is ranked; at least its cost if it has met no other candidate."""
        return self.measurement.rank_secs

    def is_before(self, rank_secs: float) -> bool:
        """Return true if it ranks before a candidate of ``rank_secs``."""
        if self.measurement.comparison is None and self.cost_secs >= rank_secs:
            return False
        return self.rank_secs < rank_secs


class Ranking:
    """The records of one task, taken in one after the other, and the incumbent that follows from them."""

    def __init__(self) -> None:
        self._ranked: dict[str, Ranked] = {}
        self._revisions: dict[str, int] = {}
        self._met: set[str] = set()  # in a final round
        self._best: Ranked | None = None
        self._best_rank_secs = math.inf

    def add(self, record: Record) -> None:
        """Take in the next record of the task. A revision replaces the candidate's last measurement; a trial does so
        only if there is no revision."""
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
                elif measured.stopped == STOPPED and self._best is not None:  # its time was up before it was decided
                    self._met.add(self._best.candidate.id)
            verified = measured.verified or (before is not None and before.verified)
            ranked = self._ranked[candidate.id] = Ranked(candidate, measured, measured.cost_secs, verified)
            if verified and (self._best is None or ranked.is_before(self._best_rank_secs)):
                self._choose(ranked)
                return
        if before is not None and before is self._best:
            verified_ones = [each for each in self._ranked.values() if each.verified]
            self._choose(min(verified_ones, key=lambda each: each.rank_secs, default=None))

    def _choose(self, ranked: Ranked | None) -> None:
        self._best = ranked
        self._best_rank_secs = math.inf if ranked is None else ranked.rank_secs

    @property
    def best(self) -> Candidate | None:
        """The incumbent."""
        return None if self._best is None else self._best.candidate

    @property
    def best_secs(self) -> float:
        """Cost of the incumbent, infinite while there is none."""
        return math.inf if self._best is None else self._best.cost_secs

    @property
    def incumbent(self) -> Incumbent:
        """The incumbent in the form in which devices get it."""
        best = self._best
        return Incumbent() if best is None else Incumbent(best.candidate.id, best.cost_secs, self._best_rank_secs)

    def next_revision(self, candidate_id: str) -> int:
        """The number of the next revision of a candidate."""
        return self._revisions.get(candidate_id, 0) + 1

    def near_best(self, candidate_id: str) -> bool:
        """Return true if a candidate may still be among the finalists; true also before it is measured."""
        ranked = self._ranked.get(candidate_id)
        return ranked is None or ranked.cost_secs <= self.best_secs * (1 + MAX_MARGIN)

    def finalists(self) -> tuple[Candidate, ...]:
        """Return the candidates between which a shoot-out decides (see :func:`policies.measuring.shootout.finalists`),
        the incumbent first: some may have a lower cost and were never verified. Without an incumbent no candidate was
        verified: then return those of the lowest cost. The result is empty if a shoot-out has decided between these
        very candidates."""
        standings = (CostEstimate(name, each.cost_secs, each.measurement.error) for name, each in self._ranked.items())
        chosen = [self._ranked[candidate_id].candidate for candidate_id in finalists(standings)]
        best = self.best
        if best is None:
            ordered = sorted(self._ranked.values(), key=lambda each: each.cost_secs)
            chosen = [each.candidate for each in ordered[:MAX_FINALISTS]]
        if chosen and best is not None:
            chosen = [best, *(each for each in chosen if each != best)][:MAX_FINALISTS]
        # Only candidates that would meet count: one that the incumbent leaves no room for is no reason to meet again.
        return () if all(each.id in self._met for each in chosen) else tuple(chosen)
