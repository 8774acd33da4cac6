"""What the stages of the scheduler share: the tasks with their trials, the queues between the stages, the wake-up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_tune.domain import Candidate, Record, Task
from policies.measuring.ranking import Ranking
from policies.search.bandits import TaskState

_LOG = logging.getLogger(__name__)
GRANT = 8  # candidates proposed by one grant
_WAKE_SECS = 0.5


@dataclass
class Trial:
    """A candidate under way. ``losses``: the devices that were lost while it ran, in order. ``alone``: it is measured
    in a batch of its own, because a process that measured it with others ended and nobody knows by whose fault."""

    candidate: Candidate
    artifact: Any = None  # object reference of the built artifact
    lost_builders: int = 0
    losses: list[str] = field(default_factory=list)
    alone: bool = False


@dataclass
class Oracle:
    """The unscheduled program of a task, to be built."""

    task: Task
    lost_builders: int = 0


@dataclass
class TaskTrials:
    """What the records say of one task, and what is under way."""

    task: Task
    floor_secs: float
    limit: int | None = None  # of trials
    trials: int = 0
    best_secs: float = math.inf
    best_sketch: int = -1
    under_way: set[str] = field(default_factory=set)  # ids of candidates granted and not yet recorded
    reserved: int = 0  # trials being granted at the moment
    offer: int = 0  # number of the last offer of candidates that arrived
    exhausted: bool = False  # every candidate is measured or under way
    finished: str = ""  # the reason, empty while the task is tuned
    best_history: list[float] = field(default_factory=list)  # incumbent's cost after each trial
    ranking: Ranking = field(default_factory=Ranking)
    artifacts: dict[str, Any] = field(default_factory=dict)  # object references, of candidates near the best

    def learn(self, record: Record) -> None:
        """A record of this task is durable."""
        self.ranking.add(record)
        best = self.ranking.best
        self.best_secs, self.best_sketch = self.ranking.best_secs, -1 if best is None else best.sketch
        if record.revision == 0:
            self.trials += 1
            self.best_history.append(self.best_secs)
        if not record.measurement.run_secs:
            self.artifacts.pop(record.candidate.id, None)
        # Few are near the best, and what is built and not measured yet stays.
        self.artifacts = {name: kept for name, kept in self.artifacts.items() if self.ranking.near_best(name)}

    @property
    def in_flight(self) -> int:
        return len(self.under_way) + self.reserved

    @property
    def room(self) -> int:
        """Trials that may be granted at once: none for a finished task."""
        if self.finished or self.exhausted:
            return 0
        return GRANT if self.limit is None else min(GRANT, max(0, self.limit - self.trials - self.in_flight))

    def state(self) -> TaskState:
        """What the bandit sees."""
        return TaskState(
            weight=self.task.weight,
            flop=self.task.workload.flop,
            best_history=tuple(self.best_history),
            pending=self.in_flight,
            finished=self.room == 0,
            floor_secs=self.floor_secs,
        )

    def finish(self, reason: str) -> None:
        """The task gets no more trials."""
        if not self.finished:
            self.finished = reason
            _LOG.info("%s on %s: %s", self.task.workload.name, self.task.device_class.name, reason)

    def finish_if_exhausted(self) -> None:
        """An exhausted task is finished when the last of its candidates is recorded."""
        if self.exhausted and self.in_flight == 0:
            self.finish(f"exhausted: all its candidates are measured ({self.trials})")


class Board:
    """The tasks by id, and what waits for a builder or for a device of each class. For one event loop.

    Time is the loop's own, so that a loop with a virtual clock plays a whole session in an instant.
    """

    def __init__(
        self, tasks: Mapping[str, TaskTrials], device_classes: Iterable[str], time_budget_secs: float | None
    ) -> None:
        self.tasks = tasks
        self.time_budget_secs = time_budget_secs
        # Bounded by the granting, which looks at its length: a builder that puts work back must never wait.
        self.build_queue: asyncio.Queue[Trial | Oracle] = asyncio.Queue()
        self.built: dict[str, deque[Trial]] = {name: deque() for name in device_classes}
        self.building = 0
        self.oracles: dict[str, asyncio.Future[Any]] = {}
        self.stopping = asyncio.Event()
        self._changed = asyncio.Condition()
        self._started: float | None = None

    def start(self) -> None:
        """The time budget begins now."""
        self._started = asyncio.get_running_loop().time()

    @property
    def elapsed_secs(self) -> float:
        """Since :meth:`start`; 0 before."""
        return 0.0 if self._started is None else asyncio.get_running_loop().time() - self._started

    def over(self) -> bool:
        """Whether nothing new shall be begun."""
        budget = self.time_budget_secs
        return self.stopping.is_set() or (budget is not None and self.elapsed_secs >= budget)

    @property
    def builders_idle(self) -> bool:
        return self.building == 0 and self.build_queue.empty()

    async def notify(self) -> None:
        """Something moved."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self.wait_for_change()

    async def wait_for_change(self) -> None:
        """Until something moved, or half a second: the time budget ends without an event."""
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _WAKE_SECS)
