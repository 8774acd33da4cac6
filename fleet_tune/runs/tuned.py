"""The second value of a run: its tasks as they were searched, and the state at the end of the tuning."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_tune.base.results import Progress, SkippedPart, Transferred
from fleet_tune.base.search_task import SearchTask
from fleet_tune.runs.prepared import Prepared


@dataclass(frozen=True)
class Tuned:
    """A network whose tasks are tuned, or that needed no trial."""

    prepared: Prepared
    """The network, with all device classes that took part."""
    tasks: tuple[SearchTask, ...]
    """The tasks that can be compiled from records, in the order of the network. In a run without trials only tasks over
    dynamic rows have sketches; another task is described only if it turns out to need a first choice."""
    left_out: tuple[SkippedPart, ...] = ()
    """Parts that the run does without: the parts of ``prepared``, and the parts found when tasks were described."""
    is_complete: bool = True
    """False if a signal came before every task was described."""
    progress: Progress | None = None
    """The last snapshot of the tuning. None if there was none."""
    tried: frozenset[str] = frozenset()
    """Ids of the tasks that had trials."""

    @property
    def transferred(self) -> Transferred | None:
        """Summary of what the searches learned before their first trial. None if they learned nothing."""
        return self.prepared.transferred(self.tasks)
