"""The build stage: what waits for a builder, and which builder works on what. One for tuning and for shoot-outs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from fleet_tune.domain import Measurement, Outcome, Task
from policies.runs.commands import Build
from policies.runs.plan import Flow
from policies.runs.tasks import Trial


@dataclass(slots=True)
class Job:
    """Something to build: the candidate of ``trial``, or the task's oracle where that is None. ``finalist``: for a
    shoot-out. ``lost_builders``: how many builders were lost over it."""

    task: Task
    trial: Trial | None
    finalist: bool = False
    lost_builders: int = 0

    @property
    def device_class(self) -> str:
        return self.task.device_class.name


class BuildStage:
    """A queue in front of ``builders`` builders, each of which builds one job at a time.

    Bounded by the granting, which looks at its length: what a lost builder leaves is always put back.
    """

    def __init__(self, builders: int, flow: Flow) -> None:
        self._flow = flow
        self._queue: deque[Job] = deque()
        self._jobs: dict[int, Job] = {}
        self._began: dict[int, float] = {}  # when each builder that works began
        self._of_class: Counter[str] = Counter()  # jobs that wait or are worked on
        self._free = deque(range(builders))
        self.builders = builders

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def building(self) -> int:
        return len(self._jobs)

    @property
    def idle(self) -> bool:
        """Whether nothing is built and nothing waits for it."""
        return not self._jobs and not self._queue

    @property
    def saturated(self) -> bool:
        """Whether no builder is free."""
        return not self._free

    @property
    def room(self) -> int:
        """How many more may wait: no longer than the builders need for what waits for each."""
        return self._flow.waiting_per_builder * self.builders - len(self._queue)

    def under_way(self, device_class: str) -> int:
        """Jobs for a class of devices that wait or are worked on."""
        return self._of_class[device_class]

    def add(self, job: Job) -> None:
        self._of_class[job.device_class] += 1
        self._queue.append(job)

    def drop(self, unwanted: Callable[[Job], bool]) -> list[Job]:
        """Take the jobs that nobody wants any more out of the queue; those that a builder works on stay."""
        dropped = [job for job in self._queue if unwanted(job)]
        self._of_class.subtract(job.device_class for job in dropped)
        self._queue = deque(job for job in self._queue if not unwanted(job))
        return dropped

    def start(self, now: float) -> list[Build]:
        """Give every free builder a job, as long as there are some."""
        commands = []
        while self._free and self._queue:
            builder, job = self._free.popleft(), self._queue.popleft()
            self._jobs[builder], self._began[builder] = job, now
            commands.append(Build(builder, job.task, None if job.trial is None else job.trial.candidate))
        return commands

    def works(self, builder: int) -> bool:
        """Whether the builder has a job."""
        return builder in self._jobs

    def ended(self, builder: int, now: float) -> tuple[Job, float] | None:
        """The job that the builder has done, and which frees it, with the seconds that it took; None for one that was
        given up before."""
        job = self._jobs.pop(builder, None)
        if job is None:
            return None
        self._of_class[job.device_class] -= 1
        self._free.append(builder)
        return job, now - self._began.pop(builder)

    def lost(self, builder: int, detail: str) -> tuple[Job, Measurement] | None:
        """The builder was lost over its job. It rests until :meth:`rested`; the job is put back, or given up with the
        failure that blames it: then it is the answer."""
        job = self._jobs.pop(builder, None)
        if job is None:
            return None
        del self._began[builder]
        job.lost_builders += 1
        if job.lost_builders < self._flow.attempts:
            self._queue.append(job)
            return None
        self._of_class[job.device_class] -= 1
        return job, Measurement(Outcome.BUILD_ERROR, detail=detail)

    def rested(self, builder: int) -> None:
        """A lost builder may work again."""
        self._free.append(builder)
