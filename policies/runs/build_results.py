"""Results of builds: what an artifact, a failure or a lost builder means for the candidate and for the run."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_tune.base.domain import Measurement, Outcome
from fleet_tune.base.errors import BuildersLostError
from policies.runs.commands import Abort, Command, DropArtifacts, Log, RecordFailure
from policies.runs.events import BuilderLost, Built
from policies.runs.kill_counts import KillCounts, Step
from policies.runs.phase import Phase
from policies.runs.stages.building import Buildable, BuildStage
from policies.runs.stages.built_queue import BuiltQueue
from policies.runs.stages.final_round import FinalRound
from policies.runs.stages.pace import Pace
from policies.runs.stages.task_finisher import TaskFinisher
from policies.runs.tasks import OracleBuild, OracleState, TaskTrials

_MEND_AND_RESUME = "mend what it names and run the same command again: it resumes"


class BuildResults:
    """Results of the builds of a run, for tuning and for shoot-outs."""

    def __init__(
        self,
        tasks: Mapping[str, TaskTrials],
        builds: BuildStage,
        queue: BuiltQueue,
        pace: Pace,
        finisher: TaskFinisher,
        kills: KillCounts,
        final_round: FinalRound,
    ) -> None:
        self._tasks = tasks
        self._builds = builds
        self._queue = queue
        self._pace = pace
        self._finisher = finisher
        self._kills = kills
        self._final_round = final_round

    def take(self, event: Built, phase: Phase, now: float) -> list[Command]:
        """Take in the answer of a builder."""
        ended = self._builds.ended(event.builder, now)
        if ended is None:
            return []
        job, secs = ended
        self._kills.reset(Step.BUILT)
        self._pace.built(job.task.device_class.name, secs)
        return self._is_built(job, phase) if event.failure is None else self._not_built(job, event.failure, phase)

    def builder_lost(self, event: BuilderLost, phase: Phase, now: float) -> list[Command]:
        """Requeue or give up the job of a lost builder. The loss counts as the builder's fault, unless a builder is
        lost over the job again."""
        builder, detail = event.builder, event.detail
        if not self._builds.works(builder):
            return []
        commands: list[Command] = [Log("warning", f"builder {builder}: {detail}")]
        given_up = self._builds.lost(builder, detail, event.cause)
        if self._builds.hopeless:
            return [*commands, *self._without_builders(detail, phase)]
        self._builds.rest(builder, now)
        return commands if given_up is None else [*commands, *self._not_built(*given_up, phase)]

    def _is_built(self, job: Buildable, phase: Phase) -> list[Command]:
        task = self._tasks[job.task.id]
        if isinstance(job, OracleBuild):
            if task.oracle is not OracleState.FAILED:  # if it failed, the task is given up
                task.oracle_ready()
                self._queue.oracle_ready(job.task.id)
            return []
        candidate_id = job.candidate.id
        if not job.is_finalist and task.oracle is OracleState.FAILED:
            task.candidates.end(candidate_id)
            return [DropArtifacts((candidate_id,))]
        task.candidates.built(candidate_id)
        if not job.is_finalist and phase is Phase.TUNING:
            self._queue.add(job)
        return []

    def _not_built(self, job: Buildable, failure: Measurement, phase: Phase) -> list[Command]:
        task = self._tasks[job.task.id]
        is_killed = failure.outcome is Outcome.KILLED
        commands = self._kills.add(Step.BUILT, failure, phase is Phase.TUNING) if is_killed else []
        if isinstance(job, OracleBuild):
            return commands + self._finisher.without_oracle(task, failure.detail)
        if job.is_finalist:
            self._final_round.not_built(job)
            return commands
        if is_killed:
            return self._finisher.give_up(job.candidate, failure) + commands
        return [RecordFailure(job.candidate, failure)]

    def _without_builders(self, detail: str, phase: Phase) -> list[Command]:
        """End the run, since nothing can be built any more. During the shoot-outs, only begin no further shoot-out."""
        if phase is Phase.SHOOT_OUTS:
            self._final_round.close()
            return []
        return [Abort(BuildersLostError(f"no builder works: {detail}", _MEND_AND_RESUME))]
