"""Times and numbers of candidates in each stage of a run, for its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fleet_tune.base.domain import Candidate, Outcome
from fleet_tune.base.stages import DurationCounter, Stage, StageProgress
from policies.runs.commands import Build, Command, Measure, Propose
from policies.runs.events import BatchMeasured, Built, Event, Proposed


@dataclass
class _StageCount:
    begun: int = 0
    done: int = 0
    failed: int = 0
    returned: int = 0
    durations: DurationCounter = field(default_factory=DurationCounter)
    waits: DurationCounter = field(default_factory=DurationCounter)

    @property
    def progress(self) -> StageProgress:
        return StageProgress(
            self.begun, self.done, self.failed, self.returned, self.durations.histogram, self.waits.histogram
        )


class StageClock:
    """Follows candidates through the stages.

    Args:
        now: the clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._stages = {stage: _StageCount() for stage in Stage}
        self._left: dict[str, float] = {}
        """When a candidate left its last stage, by its id, while it waits for the next one."""

    @property
    def progress(self) -> dict[str, StageProgress]:
        """The state of each stage."""
        return {stage.value: count.progress for stage, count in self._stages.items()}

    def begin(self, command: Command) -> Callable[[Event | None], None]:
        """Note that a command begins. Return the function that notes its answer; it does nothing for commands that no
        candidate waits for, such as probes."""
        began = self._now()
        match command:
            case Propose(_, count):
                self._stages[Stage.SEARCH].begun += count
                return lambda event: self._proposed(event, count, began)
            case Build(candidate=Candidate() as candidate):
                self._enter(Stage.BUILD, [candidate.id])
                return lambda event: self._built(event, candidate, began)
            case Measure(candidates=candidates):
                self._enter(Stage.MEASURE, [each.id for each in candidates])
                return lambda event: self._measured(event, candidates, began)
            case _:
                return lambda _: None

    def begin_commit(self, records: int, waited_secs: float) -> None:
        """Note that records are being stored after a wait of ``waited_secs``."""
        count = self._stages[Stage.STORE]
        count.begun += records
        for _ in range(records):
            count.waits.add(waited_secs)

    def end_commit(self, records: int, began: float) -> None:
        """Note that records are durable; ``began``: when the call began, by the clock."""
        self._leave(Stage.STORE, records, 0, began)

    def forget(self, candidate_ids: Iterable[str]) -> None:
        """Forget candidates that enter no further stage."""
        for each in candidate_ids:
            self._left.pop(each, None)

    def _enter(self, stage: Stage, candidate_ids: Iterable[str]) -> None:
        """Note that candidates enter a stage, and how long they have waited for it."""
        count, now = self._stages[stage], self._now()
        for each in candidate_ids:
            count.begun += 1
            left = self._left.pop(each, None)
            if left is not None:
                count.waits.add(now - left)

    def _leave(self, stage: Stage, done: int, failed: int, began: float) -> None:
        """Note the end of a step of a stage. ``began``: when the step began, by the clock."""
        count = self._stages[stage]
        count.done += done
        count.failed += failed
        count.durations.add(self._now() - began)

    def _proposed(self, event: Event | None, count: int, began: float) -> None:
        if isinstance(event, Proposed):
            self._stages[Stage.SEARCH].returned += count - len(event.candidates)
            self._leave(Stage.SEARCH, len(event.candidates), 0, began)
            self._wait(each.id for each in event.candidates)
        else:
            self._leave(Stage.SEARCH, 0, count, began)

    def _built(self, event: Event | None, candidate: Candidate, began: float) -> None:
        well = isinstance(event, Built) and event.failure is None
        self._leave(Stage.BUILD, int(well), int(not well), began)
        if well:
            self._wait([candidate.id])

    def _measured(self, event: Event | None, candidates: Sequence[Candidate], began: float) -> None:
        outcomes: Mapping[str, Outcome] = event.outcomes if isinstance(event, BatchMeasured) else {}
        well = sum(outcome is Outcome.OK for outcome in outcomes.values())
        not_tried = [each.id for each in candidates if each.id not in outcomes]
        self._stages[Stage.MEASURE].returned += len(not_tried)
        self._leave(Stage.MEASURE, well, len(candidates) - len(not_tried) - well, began)
        self._wait(not_tried)

    def _wait(self, candidate_ids: Iterable[str]) -> None:
        self._left |= dict.fromkeys(candidate_ids, self._now())
