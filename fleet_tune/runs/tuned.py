"""The second value of a run: its tasks as they were searched, and the state in which the tuning ended."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_tune.base.results import Progress, SkippedPart, Transferred
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.prepared import Prepared


@dataclass(frozen=True)
class Tuned:
    """A network whose tasks are tuned, or that needed no trial."""

    prepared: Prepared
    """The network with all device classes that took part."""
    tasks: tuple[SearchTask, ...]
    """The tasks that can be compiled from records, in the order of the network. In a run without trials only
    those over dynamic rows have sketches: there a task is described when it needs a first choice after all."""
    left_out: tuple[SkippedPart, ...] = ()
    """Parts that the run does without: those of ``prepared``, and those found when tasks were described."""
    is_complete: bool = True
    """False where a signal came before every task was described."""
    progress: Progress | None = None
    """The last snapshot of the tuning; None where there was none."""
    tried: frozenset[str] = frozenset()
    """Ids of the tasks that had trials."""

    @property
    def transferred(self) -> Transferred | None:
        """Summary of what the searches have learned before their first trial."""
        return self.prepared.transferred(self.tasks)
