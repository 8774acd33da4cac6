"""The build stage: which jobs wait for a builder, and which builder works on which job, in tuning and in shoot-outs."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable

from fleet_tune.base.domain import Measurement, Outcome
from policies.runs.commands import Build
from policies.runs.events import BuilderLossCause
from policies.runs.plan import InFlightLimits
from policies.runs.tasks import OracleBuild, Trial, killed
from policies.runs.times.timers import Timers

_LONG = "a build takes long"  # the spaces set it apart from the names of devices


Buildable = Trial | OracleBuild


class BuildStage:
    """Queue of jobs in front of builders, each of which builds one job at a time.

    The builder that became free last gets the next job, so that only as many builders start their workers as the
    devices need. The granting bounds the queue. The job of a lost builder is requeued even if the queue is full.

    Args:
        builders: numbers of the builders.
        limit_of: returns the seconds that a job may take.
    """

    def __init__(
        self, builders: Iterable[int], flow: InFlightLimits, timers: Timers, limit_of: Callable[[Buildable], float]
    ) -> None:
        self._flow = flow
        self._timers = timers
        self._limit_of = limit_of
        self._queue: deque[Buildable] = deque()
        self._jobs: dict[int, Buildable] = {}
        self._began: dict[int, float] = {}  # when each builder was given its job, in order
        self._of_class: Counter[str] = Counter()  # jobs that wait or are being built
        self._there = set(builders)
        self._free = sorted(self._there, reverse=True)  # the last one gets the next job
        self._failures: dict[int, int] = {}  # failures of each builder by itself since its last build
        self._resting: dict[str, int] = {}  # lost builders by the name of their timer
        self._absences: dict[int, int] = {}  # times in a row that each builder was absent

    @property
    def builders(self) -> int:
        """Number of builders."""
        return len(self._there)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def building(self) -> int:
        return len(self._jobs)

    @property
    def idle(self) -> bool:
        """True while nothing is built and nothing waits for it."""
        return not self._jobs and not self._queue

    @property
    def saturated(self) -> bool:
        """True while no builder is free."""
        return not self._free

    @property
    def room(self) -> int:
        """Number of builds that may be added: the queue is no longer than the builders need."""
        return self._flow.waiting_per_builder * self.builders - len(self._queue)

    def under_way(self, device_class: str) -> int:
        """Return the number of jobs for a device class that wait or are being built."""
        return self._of_class[device_class]

    def nothing_soon(self, now: float) -> bool:
        """Return true if no build will end soon: there is none under way, or all of them take long."""
        if self._free and self._queue:
            return False
        last_began = next(reversed(self._began.values()), -math.inf)
        return now >= last_began + self._flow.gather_secs

    def add(self, job: Buildable) -> None:
        self._of_class[job.task.device_class.name] += 1
        self._queue.append(job)

    def drop(self, unwanted: Callable[[Buildable], bool]) -> list[Buildable]:
        """Take the ``unwanted`` jobs out of the queue, and return them. Jobs that a builder works on stay."""
        dropped = [job for job in self._queue if unwanted(job)]
        self._of_class.subtract(job.task.device_class.name for job in dropped)
        self._queue = deque(job for job in self._queue if not unwanted(job))
        return dropped

    def add_builders(self, builders: Iterable[int]) -> None:
        """Add builders, with numbers that no builder has had before."""
        for builder in sorted(set(builders) - self._there):
            self._there.add(builder)
            self._free.insert(0, builder)

    def remove_builder(self, builder: int) -> None:
        """Remove a builder. Its job is built next, and is not blamed."""
        self._there.discard(builder)
        self._failures.pop(builder, None)
        self._absences.pop(builder, None)
        if builder in self._free:
            self._free.remove(builder)
        job = self._taken_from(builder)
        if job is not None:
            self._queue.appendleft(job)

    def start(self, now: float) -> list[Build]:
        """Give every free builder a job, as long as jobs wait."""
        commands = []
        while self._free and self._queue:
            builder, job = self._free.pop(), self._queue.popleft()
            self._jobs[builder], self._began[builder] = job, now
            self._timers.at(now + self._flow.gather_secs, _LONG)
            commands.append(Build(builder, job.task, job.candidate, self._limit_of(job)))
        return commands

    def works(self, builder: int) -> bool:
        """Return true if the builder has a job."""
        return builder in self._jobs

    def ended(self, builder: int, now: float) -> tuple[Buildable, float] | None:
        """Free a builder that has answered. Return its job and the seconds that this took; None if the builder was
        given up before it answered."""
        began, job = self._began.get(builder, now), self._taken_from(builder)
        if job is None:
            return None
        self._of_class[job.task.device_class.name] -= 1
        self._free.append(builder)
        self._failures.pop(builder, None)
        self._absences.pop(builder, None)
        return job, now - began

    def lost(self, builder: int, detail: str, cause: BuilderLossCause) -> tuple[Buildable, Measurement] | None:
        """Requeue the job of a builder that was lost, or give the job up. Return a job that is given up, with its
        failure: KILLED, which blames nobody, or a build error, which blames the job.

        A job is requeued behind all others, so that none of them waits for it. An ``ABSENT`` builder has not seen its
        job, so that this job is built next. The caller lets the builder :meth:`rest`.
        """
        job = self._taken_from(builder)
        if job is None:
            return None
        if cause is BuilderLossCause.ABSENT:
            self._absences[builder] = self._absences.get(builder, 0) + 1
            self._queue.appendleft(job)
            return None
        self._absences.pop(builder, None)
        failure: Measurement | None = None
        match cause:
            case BuilderLossCause.NOT_BEGUN:
                self._failures[builder] = self._failures.get(builder, 0) + 1
            case BuilderLossCause.OUTSIDE:
                job.build_kills += 1
                if job.build_kills >= self._flow.max_kills:
                    failure = killed("that built it", job.build_kills, detail)
            case BuilderLossCause.JOB:
                job.lost_builders += 1
                if job.lost_builders >= self._flow.max_builder_losses:
                    failure = Measurement(Outcome.BUILD_ERROR, detail=detail)
        if failure is None:
            self._queue.append(job)
            return None
        self._of_class[job.task.device_class.name] -= 1
        return job, failure

    def rest_secs(self, builder: int) -> float:
        """Return the seconds for which a builder that was just lost rests."""
        if builder in self._absences:
            return min(self._flow.max_absent_backoff_secs, self._flow.backoff_of(self._absences[builder]))
        return self._flow.backoff_of(self._failures.get(builder, 1))

    @property
    def hopeless(self) -> bool:
        """True once no builder works: each has failed by itself again and again and built nothing meanwhile, or has
        been absent for minutes."""
        return bool(self._there) and all(
            self._failures.get(builder, 0) >= self._flow.max_failed_starts
            or self._absences.get(builder, 0) >= self._flow.max_absences
            for builder in self._there
        )

    def rest(self, builder: int, now: float) -> None:
        """Let a lost builder rest; :meth:`timer_due` ends the rest."""
        name = f"builder {builder}"  # the space sets it apart from the names of devices
        self._resting[name] = builder
        self._timers.at(now + self.rest_secs(builder), name)

    def timer_due(self, name: str) -> None:
        """End the rest of a builder, if the timer of this name is a builder's."""
        if name in self._resting:
            self.rested(self._resting.pop(name))

    def rested(self, builder: int) -> None:
        """Let a lost builder work again, unless it has left. Builders that were not lost get jobs before it."""
        if builder in self._there:
            self._free.insert(0, builder)

    def _taken_from(self, builder: int) -> Buildable | None:
        self._began.pop(builder, None)
        return self._jobs.pop(builder, None)
