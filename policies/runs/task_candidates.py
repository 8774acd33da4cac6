"""The candidates of a task: under way, recorded, given up, and those with an artifact."""

from __future__ import annotations

from collections.abc import Collection, Iterable


class TaskCandidates:
    """Ids of the candidates of one task."""

    def __init__(self) -> None:
        self.under_way: set[str] = set()
        """Candidates that are granted and not yet recorded."""
        self.recorded: set[str] = set()
        """Candidates with a record of this run."""
        self.given_up: set[str] = set()
        """Candidates that were granted and skipped: they get no record."""
        self.artifacts: set[str] = set()
        """Candidates that are built and kept: those near the best, and those that are not measured yet."""

    def knows(self, candidate_id: str) -> bool:
        """Return true for a candidate of this run: under way, recorded or given up."""
        return any(candidate_id in ids for ids in (self.under_way, self.recorded, self.given_up))

    def begin(self, candidate_id: str) -> None:
        """Note that a candidate is under way."""
        self.under_way.add(candidate_id)

    def built(self, candidate_id: str) -> None:
        """Note that a candidate has an artifact."""
        self.artifacts.add(candidate_id)

    def end(self, candidate_id: str) -> None:
        """Note that a candidate is no longer under way. If it was given up, it has been recorded after all."""
        self.under_way.discard(candidate_id)
        self.given_up.discard(candidate_id)

    def record(self, candidate_id: str) -> None:
        """Note that a candidate has a record of this run."""
        self.recorded.add(candidate_id)

    def give_up(self, candidate_id: str) -> None:
        """Skip a candidate: it gets no record."""
        self.under_way.discard(candidate_id)
        self.artifacts.discard(candidate_id)
        self.given_up.add(candidate_id)

    def drop(self, candidate_ids: Iterable[str]) -> tuple[str, ...]:
        """Drop candidates that will not be measured, and all artifacts. Return the ids of the dropped artifacts."""
        self.under_way.difference_update(candidate_ids)
        return self.drop_artifacts(set(self.artifacts))

    def drop_artifacts(self, candidate_ids: Collection[str]) -> tuple[str, ...]:
        """Drop the artifacts of these candidates. Return their ids in order."""
        self.artifacts.difference_update(candidate_ids)
        return tuple(sorted(candidate_ids))
