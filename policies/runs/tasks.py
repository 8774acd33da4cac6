"""The tasks of a run: their records, and their trials under way."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from fleet_tune.base.domain import Candidate, Measurement, Outcome, Record, Task
from fleet_tune.base.results import TaskProgress
from policies.measuring.build_limit import BuildLimit
from policies.measuring.ranking import Ranking
from policies.runs.planned_task import PlannedTask
from policies.runs.task_candidates import TaskCandidates
from policies.runs.warm_start import CONFIRMED
from policies.search.bandits import TaskState, kind_of_name


class OracleState(enum.Enum):
    """States of the artifact of a task's oracle."""

    NOT_BUILT = enum.auto()
    ON_ITS_WAY = enum.auto()
    READY = enum.auto()
    FAILED = enum.auto()


@dataclass(slots=True)
class Trial:
    """A candidate under way: it waits for a builder, is built, waits for a device, and is measured."""

    task: Task
    candidate: Candidate
    is_finalist: bool = False
    """True for a candidate that is built for a shoot-out: it has a record already."""
    lost_builders: int = 0
    """Number of builders that were lost over it, maybe by its fault."""
    build_kills: int = 0
    """Times that a process that built it was ended from outside."""
    losses: list[str] = field(default_factory=list)
    """Devices that were lost while it ran, in order."""
    kills: int = 0
    """Times that a process that measured it was ended from outside."""
    alone: bool = False
    """True if it must be measured in its own batch: a process that measured it with others has ended, and it is not
    known which candidate was the cause."""


@dataclass(slots=True)
class OracleBuild:
    """The oracle of a task on its way through the builders."""

    task: Task
    lost_builders: int = 0
    """Number of builders that were lost over it."""
    build_kills: int = 0
    """Times that a process that built it was ended from outside."""

    @property
    def candidate(self) -> None:
        """An oracle is built from no candidate: its program is unscheduled."""
        return None


def killed(what: str, times: int, detail: str) -> Measurement:
    """Return the failure of a job that is given up because its processes were ended from outside ``times`` times.
    ``what``: which process, as a relative clause. ``detail``: how the last one ended."""
    return Measurement(Outcome.KILLED, detail=f"the process {what} was ended from outside {times} times: {detail}")


class TaskTrials:
    """One task: its trials, its incumbent, its candidates under way."""

    def __init__(self, planned: PlannedTask, limit: int | None = None) -> None:
        """``limit``: limit of trials; those of this run and of earlier runs count."""
        self.planned = planned
        self.task: Task = planned.task
        self.candidates = TaskCandidates()
        self.ranking = Ranking()
        self.build_limit = BuildLimit()
        self.oracle = OracleState.NOT_BUILT
        self.trials = 0  # with a record
        self.reserved = 0  # trials being granted at the moment
        self.last_proposal = 0  # number of the last proposal that arrived
        self.exhausted = False  # every candidate is measured or under way
        self.finish_reason = planned.settled  # empty while the task is tuned
        # Trials after which it needs no more, if one was right; 0 for no such number.
        self.confirmation_trials = planned.confirmation_trials
        self.floor_secs = planned.floor_secs
        self.rules = planned.rules  # of its sketches; None while it is being described
        self.is_left_out = planned.rules == ()  # it turned out to have no sketch
        self.best_history: list[float] = []  # incumbent's cost after each trial
        self._keeps_artifacts = False  # true once a shoot-out may need them
        self._limit = limit

    @property
    def device_class(self) -> str:
        return self.task.device_class.name

    @property
    def is_awaited(self) -> bool:
        """True while the task is being described."""
        return self.rules is None and not self.is_left_out

    @property
    def best_secs(self) -> float:
        return self.ranking.best_secs

    @property
    def in_flight(self) -> int:
        return len(self.candidates.under_way) + self.reserved

    @property
    def spent(self) -> int:
        """Number of trials that count for the limits: those with a record, and those that were given up."""
        return self.trials + len(self.candidates.given_up)

    @property
    def shares_limit(self) -> bool:
        """True if the task has a share of the run's trials."""
        return not self.planned.settled and not self.is_left_out

    @property
    def limit(self) -> int | None:
        """Number of trials at which the task gets no more. Trials that were made before the run count."""
        return None if self._limit is None else max(self._limit, self.trials)

    def room(self, grant: int) -> int:
        """Return the number of trials that may be granted at once, at most ``grant``: 0 for a finished task or a task
        without sketches."""
        return 0 if self.rules is None else self.wanted(grant)

    def wanted(self, grant: int) -> int:
        """Return :meth:`room`, but also for a task that is still being described."""
        if self.finish_reason or self.exhausted or self.is_left_out:
            return 0
        limits = [limit for limit in (self._limit, self.confirmation_trials or None) if limit is not None]
        return min([grant, *(max(0, limit - self.spent - self.in_flight) for limit in limits)])

    # Description and oracle ------------------------------------------------------------------------------------------

    def describe(self, rules: tuple[str, ...], confirmation_trials: int, floor_secs: float | None) -> None:
        """Set the values that are known once the task has its sketches; see :class:`SketchesReady`."""
        self.rules, self.confirmation_trials = rules, confirmation_trials
        if floor_secs is not None:
            self.floor_secs = floor_secs

    def skip(self) -> None:
        """Skip the task: it has no sketch."""
        self.is_left_out = True

    def oracle_begun(self) -> None:
        """Note that the oracle waits for a builder."""
        self.oracle = OracleState.ON_ITS_WAY

    def oracle_ready(self) -> None:
        """Note that the oracle is built."""
        self.oracle = OracleState.READY

    def oracle_dropped(self) -> None:
        """Note that the oracle no longer waits for a builder, and is not built."""
        self.oracle = OracleState.NOT_BUILT

    # Candidates ------------------------------------------------------------------------------------------------------

    def reserve(self, trials: int) -> None:
        """Set the number of trials that are being granted."""
        self.reserved = trials

    def proposed(self, number: int, is_tuning: bool, exhausted: bool) -> None:
        """Note the number of the last proposal, and, while the run is tuning, whether nothing is left to propose."""
        self.last_proposal = number
        if is_tuning:
            self.exhausted = exhausted

    def drop(self, candidate_ids: Iterable[str]) -> tuple[str, ...]:
        """Drop candidates that will not be measured, and count the oracle as failed. Return the ids of all artifacts,
        which are no longer needed."""
        self.oracle = OracleState.FAILED
        return self.candidates.drop(candidate_ids)

    def finish(self, reason: str) -> bool:
        """Finish the task, if there is a reason and it is not finished yet. Return true if it is finished now."""
        if not reason or self.finish_reason:
            return False
        self.finish_reason = reason
        return True

    def end_tuning(self) -> None:
        """Keep the artifacts from now on: a shoot-out may need them."""
        self._keeps_artifacts = True

    def learn(self, record: Record, *, is_ours: bool = False) -> tuple[str, ...]:
        """Take in a committed record. Return the ids of the candidates whose artifacts are no longer needed.

        ``is_ours``: true for a record of this run.
        """
        if is_ours:
            self.candidates.record(record.candidate.id)
        best_secs = self.best_secs
        self.ranking.add(record)
        now_secs = self.best_secs
        if record.revision == 0:
            self.trials += 1
            self.best_history.append(now_secs)
            if record.measurement.run_secs:
                self.build_limit.observe(record.measurement.build_secs)
        artifacts = self.candidates.artifacts
        if self._keeps_artifacts or not artifacts:
            return ()  # a shoot-out may need them
        # Artifacts of the few candidates near the best stay, and those of candidates that are not measured yet.
        changed = artifacts if now_secs != best_secs else artifacts & {record.candidate.id}
        unwanted = {each for each in changed if not self.ranking.near_best(each)}
        if not record.measurement.run_secs:
            unwanted |= artifacts & {record.candidate.id}
        # The artifact of a candidate that waits for its measurement stays: its record may be another run's.
        return self.candidates.drop_artifacts(unwanted - self.candidates.under_way)

    def state(self, grant: int) -> TaskState:
        """Return the state of the task for the bandit."""
        return TaskState(
            weight=self.task.weight,
            flop=self.task.workload.flop,
            best_history=self.best_history or self._found,
            pending=self.in_flight,
            finished=self.room(grant) == 0,
            floor_secs=self.floor_secs,
            kind=kind_of_name(self.task.workload.name),
        )

    @property
    def _found(self) -> list[float]:
        """Best cost in the records of other runs, before the first trial; empty without one."""
        return [self.best_secs] if math.isfinite(self.best_secs) else []

    def exhausted_reason(self) -> str:
        """Return the reason why an exhausted task is finished, once the last of its candidates is recorded; empty
        before."""
        if not self.exhausted or self.in_flight:
            return ""
        return f"exhausted: all its candidates are measured ({self.trials})"

    def confirmed_reason(self) -> str:
        """Return the reason why a task is finished whose first trials are the best candidates of other runs, once these
        trials are recorded. Empty before, and if none of them was right: then the task is searched."""
        if not self.confirmation_trials or self.spent < self.confirmation_trials or self.in_flight:
            return ""
        if not math.isfinite(self.best_secs):
            self.confirmation_trials = 0
            return ""
        return f"{CONFIRMED} by {self.trials} trials of what the store has"

    def progress(self, shown_speed: float | None = 1.0) -> TaskProgress:
        """Return a snapshot. Its seconds are those by which the incumbent was chosen, at the speed ``shown_speed`` at
        which people see the task's class. With None, since no device has told its speed, no seconds are known."""
        best = self.ranking.best
        return TaskProgress(
            task_id=self.task.id,
            name=self.task.workload.name,
            device_class=self.device_class,
            weight=self.task.weight,
            flop=self.task.workload.flop,
            sketches=len(self.rules or ()),
            trials=self.trials,
            best_secs=math.inf if shown_speed is None else self.ranking.incumbent.rank_secs / shown_speed,
            finished=bool(self.finish_reason),
            finish_reason=self.finish_reason,
            best_rule="" if best is None or self.rules is None else self.rules[best.sketch],
            described=self.rules is not None,
        )


def gain_at_stake(task: TaskTrials) -> float:
    """Return the seconds of the network's latency that the task's incumbent takes; 0 without an incumbent."""
    return task.task.weight * task.best_secs if math.isfinite(task.best_secs) else 0.0


def trials_left(limit: int, tasks: Collection[TaskTrials]) -> int:
    """Return the trials of the run's limit that are neither made nor under way, nor given up."""
    return limit - sum(task.spent for task in tasks) - in_flight(tasks)


def in_flight(tasks: Iterable[TaskTrials]) -> int:
    """Return the number of trials under way of these tasks."""
    total = 0
    for task in tasks:  # called after every event, for every task: so it is written out
        total += len(task.candidates.under_way) + task.reserved
    return total
