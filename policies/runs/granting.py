"""The granting: which task gets the next trials, within the bounds of what may be under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policies.runs.building import BuildStage
from policies.runs.commands import Propose
from policies.runs.fleet import Fleet
from policies.runs.plan import RunPlan
from policies.runs.tasks import TaskTrials, in_flight
from policies.runs.timers import Timers
from policies.search.bandits import TaskBandit

# In a run that has less than SHORT_SECS for each task, a task's first grant is this: the best that is known before
# anything is measured, for every task, is worth more than the search of a few.
FIRST_GRANT = 2
SHORT_SECS = 10.0


class Granting:
    """One proposal of a device class at a time: the next choice of the bandit knows of its candidates."""

    def __init__(
        self, plan: RunPlan, tasks: Mapping[str, TaskTrials], bandit: TaskBandit, fleet: Fleet, timers: Timers
    ) -> None:
        self._plan = plan
        self._bandit = bandit
        self._fleet = fleet
        self._timers = timers
        self._tasks = tasks
        self._by_class: dict[str, list[TaskTrials]] = {}
        for task in tasks.values():
            self._by_class.setdefault(task.device_class, []).append(task)
        self._proposing: set[str] = set()  # classes
        self._rests_until: dict[str, float] = {}
        self._losses: dict[str, int] = {}  # of tasks whose last proposal was lost: how many in a row by their own fault

    @property
    def done(self) -> bool:
        """Whether nothing more is to be tuned, no task that is still being described may be, and nothing is under
        way."""
        return all(self._is_done(tasks) for tasks in self._by_class.values())

    def start(self, now: float, builds: BuildStage) -> list[Propose]:
        """Ask for candidates of every class that may have more under way."""
        commands = []
        for device_class, tasks in self._by_class.items():
            if device_class in self._proposing or now < self._rests_until.get(device_class, now):
                continue
            if self._losses and self._proposing:
                break  # one by one, so that it is clear over which task the searcher is lost
            command = self._next(device_class, tasks, builds)
            if command is not None:
                self._proposing.add(device_class)
                commands.append(command)
        return commands

    def answered(self, task_id: str) -> None:
        """A proposal has come."""
        self._released(task_id)
        self._losses.pop(task_id, None)

    def lost(self, task_id: str, now: float) -> int:
        """A proposal was lost on its way: asked for again a little later, by itself. How often in a row that has
        happened to the task while no other class had asked; what was lost together with others says nothing of it."""
        losses = self._losses.get(task_id, 0) + (len(self._proposing) == 1)
        self._released(task_id)
        device_class = self._tasks[task_id].device_class
        self._losses[task_id] = losses
        self._rests_until[device_class] = now + self._plan.flow.rest_of(max(1, losses))
        self._timers.at(self._rests_until[device_class], "granting")
        return losses

    def give_up(self, task_id: str) -> None:
        """The task gets no more trials."""
        self._losses.pop(task_id, None)

    def _released(self, task_id: str) -> None:
        task = self._tasks[task_id]
        task.reserved = 0
        self._proposing.discard(task.device_class)

    def room(self) -> int:
        """Trials that the run may grant now, at most one grant: an even share of all trials is kept for each task that
        is still being described, whatever the others could do with it."""
        flow, limit = self._plan.flow, self._plan.limits.trials
        if limit is None:
            return flow.grant
        share = max(1, limit // len(self._tasks))
        awaited = (task for task in self._tasks.values() if task.is_awaited and task.wanted(flow.grant))
        kept = sum(max(0, share - task.trials) for task in awaited)
        return max(0, min(flow.grant, self._left(limit) - kept))

    def _left(self, limit: int) -> int:
        """Trials that are neither made nor under way."""
        tasks = self._tasks.values()
        return limit - sum(task.trials for task in tasks) - in_flight(tasks)

    def _is_done(self, tasks: Sequence[TaskTrials]) -> bool:
        grant, limit = self._plan.flow.grant, self._plan.limits.trials
        if in_flight(tasks):
            return False
        return (limit is not None and self._left(limit) <= 0) or not any(task.wanted(grant) for task in tasks)

    def _is_short(self, tasks: int) -> bool:
        """Whether the time may not be enough for a whole grant of every task."""
        budget_secs = self._plan.limits.time_budget_secs
        return budget_secs is not None and budget_secs < SHORT_SECS * tasks

    def _next(self, device_class: str, tasks: Sequence[TaskTrials], builds: BuildStage) -> Propose | None:
        flow, room = self._plan.flow, self.room()
        if not room or builds.full or not any(task.room(flow.grant) for task in tasks):
            return None
        if in_flight(tasks) + flow.grant > flow.in_flight_of(len(self._fleet.usable(device_class))):
            return None
        choice = self._bandit.choose([task.state(flow.grant) for task in tasks])
        if choice is None:
            return None
        task = tasks[choice.index]
        is_first = not task.trials and not task.in_flight
        task.reserved = min(task.room(FIRST_GRANT if is_first and self._is_short(len(tasks)) else flow.grant), room)
        return Propose(task.task.id, task.reserved, task.offer)
