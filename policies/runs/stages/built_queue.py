"""The queue of built candidates that wait for a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from fleet_tune.base.domain import Candidate
from policies.runs.tasks import OracleState, TaskTrials, Trial


class BuiltQueue:
    """Trials with an artifact, in one queue for each device class. A trial waits beside its queue until the oracle of
    its task is built, since without the oracle no result can be checked."""

    def __init__(self, tasks: Mapping[str, TaskTrials]) -> None:
        self._tasks = tasks
        self._queues: dict[str, deque[Trial]] = {}  # by device class
        self._awaiting_oracle: dict[str, list[Trial]] = {}  # trials that wait for the oracle, by task id
        self._requeued: set[str] = set()  # candidates that were put back; their record may come after all

    def add_class(self, device_class: str) -> None:
        """Open the queue of a device class."""
        self._queues[device_class] = deque()

    @property
    def waiting(self) -> int:
        """Built candidates that wait for a device or for an oracle."""
        return sum(map(len, self._queues.values())) + sum(map(len, self._awaiting_oracle.values()))

    def of_class(self, device_class: str) -> tuple[Trial, ...]:
        """Return the trials that a device of the class could measure, in order."""
        return tuple(self._queues[device_class])

    def count(self, device_class: str) -> int:
        """Return the number of trials that a device of the class could measure."""
        return len(self._queues[device_class])

    def has_suspects(self, device_class: str) -> bool:
        """Return true if a waiting trial has lost a device: another device of the class may have to take it."""
        return any(trial.losses for trial in self._queues[device_class])

    def add(self, trial: Trial) -> None:
        """Append a trial that is built."""
        task = self._tasks[trial.candidate.task_id]
        if task.oracle is OracleState.READY:
            self._queues[task.device_class].append(trial)
        else:
            self._awaiting_oracle.setdefault(trial.candidate.task_id, []).append(trial)

    def oracle_ready(self, task_id: str) -> None:
        """Append the trials that have waited for the oracle of their task."""
        self._queues[self._tasks[task_id].device_class].extend(self._awaiting_oracle.pop(task_id, ()))

    def take_batch(
        self, device_class: str, least: int, most: int, may_try: Callable[[Trial], bool], builders_idle: bool
    ) -> list[Trial]:
        """Take at most ``most`` trials for one device out of the queue.

        ``may_try``: false for a trial that this device must not measure. The batch is empty if fewer than ``least``
        trials are there and more are being built (not ``builders_idle``). A trial that must be measured alone is its
        own batch.
        """
        queue = self._queues[device_class]
        batch: list[Trial] = []
        looked_at: list[Trial] = []
        while queue and len(batch) < most:
            trial = queue.popleft()
            looked_at.append(trial)
            if trial.losses and not may_try(trial):
                continue
            if trial.alone:
                if not batch:
                    batch = [trial]
                    break
                continue
            batch.append(trial)
        if not batch or (len(batch) < least and not batch[0].alone and not builders_idle):
            batch = []
        taken = {trial.candidate.id for trial in batch}
        queue.extendleft(trial for trial in reversed(looked_at) if trial.candidate.id not in taken)
        return batch

    def requeue(self, device_class: str, trials: Iterable[Trial], *, behind: bool = False) -> None:
        """Put back trials that were on a device: at the head of the queue, so that the cause of a lost device is found
        soon, or ``behind`` all others."""
        back = [trial for trial in trials if self.is_under_way(trial)]
        self._requeued |= {trial.candidate.id for trial in back}
        if behind:
            self._queues[device_class].extend(back)
        else:
            self._queues[device_class].extendleft(reversed(back))

    def drop_recorded(self, candidate: Candidate) -> None:
        """Drop a candidate whose record is durable, if it was requeued because its outcome was unknown."""
        if candidate.id in self._requeued:
            self._requeued.discard(candidate.id)
            device_class = self._tasks[candidate.task_id].device_class
            queue = self._queues[device_class]
            self._queues[device_class] = deque(trial for trial in queue if trial.candidate.id != candidate.id)

    def drop_task(self, task_id: str) -> list[Trial]:
        """Drop the trials of a task whose candidates cannot be checked. Return them."""
        device_class = self._tasks[task_id].device_class
        queue = self._queues[device_class]
        self._queues[device_class] = deque(trial for trial in queue if trial.candidate.task_id != task_id)
        queued = [trial for trial in queue if trial.candidate.task_id == task_id]
        return queued + self._awaiting_oracle.pop(task_id, [])

    def clear(self) -> None:
        """Drop all trials."""
        self._awaiting_oracle.clear()
        for queue in self._queues.values():
            queue.clear()

    def is_under_way(self, trial: Trial) -> bool:
        """Return true while the trial has no record."""
        return trial.candidate.id in self._tasks[trial.candidate.task_id].candidates.under_way
