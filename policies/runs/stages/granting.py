"""The granting: which task gets the next trials, within the bounds of the work under way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from policies.runs.commands import Propose
from policies.runs.fleet import Fleet
from policies.runs.plan import RunPlan
from policies.runs.stages.building import BuildStage
from policies.runs.stages.pace import Pace
from policies.runs.stages.trial_shares import share_of_each_task
from policies.runs.tasks import TaskTrials, in_flight, trials_left
from policies.runs.times.timers import Timers
from policies.search.bandits import TaskBandit, TaskChoice, TaskState

# A task gets at least 1/_LEAST_PART of a grant. This is also the first share of every task, of which nothing is
# measured yet.
_LEAST_PART = 4


class Granting:
    """Grants trials to tasks. Each searcher is asked for one proposal of a device class at a time, so that the next
    choice of the bandit knows of its candidates. The number of candidates follows the devices
    (:class:`policies.runs.stages.pace.Pace`).

    ``is_lost``: tells whether a device class has been without a working device for so long that no trials are kept for
    it.
    """

    def __init__(
        self,
        plan: RunPlan,
        tasks: Mapping[str, TaskTrials],
        bandit: TaskBandit,
        fleet: Fleet,
        pace: Pace,
        timers: Timers,
        is_lost: Callable[[str, float], bool],
    ) -> None:
        self._plan = plan
        self._bandit = bandit
        self._is_lost = is_lost
        self._fleet = fleet
        self._pace = pace
        self._timers = timers
        self._tasks = tasks
        self.by_class: dict[str, list[TaskTrials]] = {}
        # The tasks of each class by the number of their searcher, which answers one proposal after the other.
        self._sources: dict[str, dict[int, list[TaskTrials]]] = {}
        for task in tasks.values():
            self.add(task)
        self._asked: dict[tuple[str, int], float] = {}  # when each source whose answer is awaited was asked
        self._rests_until: dict[tuple[str, int], float] = {}
        self._losses: dict[str, int] = {}  # losses in a row by its own fault, of each task whose last proposal was lost

    def add(self, task: TaskTrials) -> None:
        """Grant trials to one more task of the run."""
        self.by_class.setdefault(task.device_class, []).append(task)
        self._sources.setdefault(task.device_class, {}).setdefault(task.planned.searcher, []).append(task)

    @property
    def done(self) -> bool:
        """True once nothing is under way and no task can get trials, not even one that is still being described."""
        return all(self._is_done(tasks) for tasks in self.by_class.values())

    def is_asking(self, device_class: str) -> bool:
        """Return true if candidates of the class are awaited, or will be asked for again in a moment."""
        return any(source[0] == device_class for source in (*self._asked, *self._rests_until))

    def start(self, now: float, builds: BuildStage) -> list[Propose]:
        """Ask for candidates of every class that may have more under way. Classes with a lost proposal come first,
        since their searcher is asked for nothing else until it answers. Then comes the class that lacks most."""
        room = builds.room
        if room < self._plan.flow.min_grant:
            return []
        lacking: dict[str, tuple[int, int]] = {}
        for each, tasks in self.by_class.items():
            if all((each, searcher) in self._asked for searcher in self._sources[each]):
                continue
            usable = self._usable(each)
            lacking[each] = self._pace.under_way(each, usable) - in_flight(tasks), self._pace.grant(each, usable)
        commands: list[Propose] = []
        lost = {self._tasks[task_id].device_class for task_id in self._losses}
        for device_class in sorted(
            lacking, key=lambda each: (each in lost, lacking[each][0] / lacking[each][1]), reverse=True
        ):
            count, grant = lacking[device_class]
            if count >= grant or count >= room:
                commands += self._ask(device_class, count, grant, room, now)
        return commands

    def _ask(self, device_class: str, lacking: int, grant: int, room: int, now: float) -> list[Propose]:
        """Ask the searchers of a class for at most ``lacking`` candidates, each for a ``grant``. ``room``: number of
        candidates that the build stage can take now."""
        commands = []
        # Several classes may get a grant at the same moment, but one above the least only for what can be built soon.
        awaited = sum(task.reserved for task in self._tasks.values())
        sources = self._sources[device_class]
        for searcher, tasks in list(sources.items()):
            source = device_class, searcher
            if source in self._asked or now < self._rests_until.get(source, now):
                continue
            if searcher in self._suspected and self._asked_of(searcher):
                continue  # one task at a time, so that it is clear over which one the searcher is lost
            grant = min(grant, max(self._plan.flow.min_grant, room - awaited))
            if lacking < grant:
                break
            self._rests_until.pop(source, None)
            command = self._next(tasks, grant, now)
            if command is not None:
                lacking -= command.count
                awaited += command.count
                self._asked[source] = now
                sources[searcher] = sources.pop(searcher)  # the others are asked first the next time
                commands.append(command)
        return commands

    def answered(self, task_id: str, now: float) -> None:
        """Note that the searcher has answered for a task."""
        self._pace.proposed(self._tasks[task_id].device_class, now - self._released(task_id))
        self._losses.pop(task_id, None)

    def lost(self, task_id: str, now: float) -> int:
        """Have a lost proposal asked for again, a little later and alone. Return the number of proposals that were lost
        in a row for the task while its searcher was asked for nothing else: a loss together with others says nothing
        about the task."""
        task = self._tasks[task_id]
        losses = self._losses.get(task_id, 0) + (self._asked_of(task.planned.searcher) == 1)
        self._released(task_id)
        self._losses[task_id] = losses
        source = task.device_class, task.planned.searcher
        self._rests_until[source] = now + self._plan.flow.backoff_of(max(1, losses))
        self._timers.at(self._rests_until[source], "granting")
        return losses

    def give_up(self, task_id: str) -> None:
        """Forget the lost proposals of a task that gets no more trials."""
        self._losses.pop(task_id, None)

    def _released(self, task_id: str) -> float:
        """Stop waiting for a task's proposal. Return the second at which it was asked for."""
        task = self._tasks[task_id]
        task.reserve(0)
        return self._asked.pop((task.device_class, task.planned.searcher))

    def _asked_of(self, searcher: int) -> int:
        """Return the number of proposals that a searcher has still to answer."""
        return sum(source[1] == searcher for source in self._asked)

    @property
    def _suspected(self) -> set[int]:
        """Searchers that were lost over a task, and have not answered for it since."""
        return {self._tasks[task_id].planned.searcher for task_id in self._losses}

    def room(self, device_class: str, grant: int, now: float) -> int:
        """Return the number of trials that the run may grant a class now, at most ``grant``. Each class that can use
        trials has a share of the limit, in proportion to its number of tasks. Each task that is still being described
        keeps its even share of that, even if other tasks could use it."""
        limit = self._plan.limits.trials
        if limit is None:
            return grant
        sharing = [name for name, tasks in self.by_class.items() if self._takes_part(name, tasks, now)]
        if device_class not in sharing:
            return 0
        used = {name: sum(task.spent for task in tasks) + in_flight(tasks) for name, tasks in self.by_class.items()}
        counts = {name: sum(task.shares_limit for task in tasks) for name, tasks in self.by_class.items()}
        share = share_of_each_task(limit, counts, used, sharing)
        awaited = (task for task in self.by_class[device_class] if task.is_awaited and task.wanted(1))
        kept = sum(max(0, math.floor(share) - task.spent) for task in awaited)
        of_class = math.ceil(share * counts[device_class]) - used[device_class] - kept
        return max(0, min(grant, of_class, trials_left(limit, self._tasks.values())))

    def _takes_part(self, device_class: str, tasks: Sequence[TaskTrials], now: float) -> bool:
        """Return true if the class can use trials. Otherwise other classes may have its share."""
        return not self._is_lost(device_class, now) and any(task.in_flight or task.wanted(1) for task in tasks)

    def _is_done(self, tasks: Sequence[TaskTrials]) -> bool:
        grant, limit = self._plan.flow.min_grant, self._plan.limits.trials
        if any(task.in_flight for task in tasks):
            return False
        no_trials = limit is not None and trials_left(limit, self._tasks.values()) <= 0
        return no_trials or not any(task.wanted(grant) for task in tasks)

    def _next(self, tasks: Sequence[TaskTrials], grant: int, now: float) -> Propose | None:
        """Return the request to the searcher of these ``tasks`` of a class; None if no task gets trials."""
        room = self.room(tasks[0].device_class, grant, now)
        if not room or not any(task.room(grant) for task in tasks):
            return None
        states = [task.state(grant) for task in tasks]
        choice = self._bandit.choose(states)
        if choice is None:
            return None
        task = tasks[choice.index]
        task.reserve(min(task.room(self._share(states, choice, task, grant)), room))
        return Propose(task.task.id, task.reserved, task.last_proposal)

    def _share(self, states: Sequence[TaskState], choice: TaskChoice, task: TaskTrials, grant: int) -> int:
        """Return the number of candidates that a task is granted at once: as many as the bandit gives it in a row, or a
        whole grant if the devices need more than the least grant. A searcher answers one proposal after the other, and
        many small ones would leave a large fleet waiting."""
        if grant > self._plan.flow.min_grant:
            return grant
        is_first = not (task.trials or task.in_flight)
        in_a_row = 1 if is_first else self._bandit.in_a_row(states, choice, grant)
        return max(in_a_row, grant // _LEAST_PART)

    def _usable(self, device_class: str) -> int:
        return self._fleet.usable_count(device_class)
