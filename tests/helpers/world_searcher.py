"""The searcher of a :class:`tests.helpers.run_world.World`."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable

from fleet_tune.base.domain import Candidate, Task
from policies.runs import commands as to_do
from policies.runs import events as ev
from tests.helpers.world_devices import candidate_of
from tests.helpers.world_settings import Settings
from tests.helpers.world_time import Timeline


class Searcher:
    """Puts forward the candidates of each task in their order, those that are ``durable`` left out. ``happens``: is
    given each event of the run."""

    def __init__(
        self,
        settings: Settings,
        time: Timeline,
        rng: random.Random,
        happens: Callable[[ev.Event], None],
        durable: Callable[[], set[str]],
    ) -> None:
        self._settings, self._time, self._rng = settings, time, rng
        self._happens, self._durable = happens, durable
        self._tasks = {task.id: task for task in settings.tasks}
        self._planned: dict[str, deque[Candidate]] = {}
        self._proposals: Counter[str] = Counter()
        self._last_proposed: dict[str, tuple[Candidate, ...]] = {}
        self._asked: dict[str, ev.Proposed | ev.ProposalLost] = {}  # what it is at, by task
        self.begin_anew()

    def begin_anew(self) -> None:
        """With what is durable, and nothing that it was asked for."""
        durable = self._durable()
        for task in self._tasks.values():
            self._forget(task, durable)
        self._asked.clear()

    def _forget(self, task: Task, durable: set[str]) -> None:
        candidates = (candidate_of(task, at) for at in range(self._settings.supply))
        self._planned[task.id] = deque(each for each in candidates if each.id not in durable)
        self._proposals[task.id] = 0

    def propose(self, command: to_do.Propose) -> None:
        settings, task = self._settings, self._tasks[command.task_id]
        assert settings.described_at.get(task.id, 0.0) <= self._time.now, "no searcher knows the task yet"
        assert task.id not in settings.left_out & settings.described_at.keys()
        if self._rng.random() < settings.searcher_restarts:
            self._forget(task, self._durable())
        planned = self._planned[task.id]
        if self._proposals[task.id] > command.last_proposal:
            planned.extendleft(reversed(self._last_proposed[task.id]))
        candidates = tuple(planned.popleft() for _ in range(min(command.count, len(planned))))
        self._proposals[task.id] = max(self._proposals[task.id], command.last_proposal) + 1
        self._last_proposed[task.id] = candidates
        answer: ev.Proposed | ev.ProposalLost = ev.Proposed(
            task.id, self._proposals[task.id], candidates, not planned, 1.0
        )
        if self._rng.random() < settings.proposals_lost:
            answer = ev.ProposalLost(task.id, "no answer")
        self._asked[task.id] = answer
        dies = task.workload.name in settings.searcher_dies
        self._time.after(settings.propose_secs, self._die if dies else lambda: self._answer(answer))

    def _answer(self, answer: ev.Proposed | ev.ProposalLost) -> None:
        if self._asked.get(answer.task_id) is answer:
            del self._asked[answer.task_id]
            self._happens(answer)

    def killed(self) -> None:
        """End, with all that it was asked for. Another process begins anew."""
        asked = tuple(self._asked)
        self.begin_anew()
        self._tell_lost(asked)

    def _die(self) -> None:
        """End, with all that it was asked for."""
        asked, self._asked = self._asked, {}
        self._tell_lost(asked)

    def _tell_lost(self, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            self._happens(ev.ProposalLost(task_id, "its process ended"))
