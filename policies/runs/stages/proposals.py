"""The answers of searchers: new candidates go to the builders, a lost proposal is asked for again."""

from __future__ import annotations

from collections.abc import Mapping

from policies.runs.commands import Command, Log, RestartSearcher
from policies.runs.events import ProposalLost, Proposed
from policies.runs.stages.building import BuildStage
from policies.runs.stages.granting import Granting
from policies.runs.stages.task_finisher import TaskFinisher
from policies.runs.tasks import OracleBuild, OracleState, TaskTrials, Trial
from policies.search.bandits import CONVERGENCE_GAIN, CONVERGENCE_TRIALS, has_converged


class Proposals:
    """Takes in proposals for the ``tasks``. ``most_lost``: number of proposals lost in a row over a task at which it is
    finished."""

    def __init__(
        self,
        most_lost: int,
        tasks: Mapping[str, TaskTrials],
        granting: Granting,
        builds: BuildStage,
        finisher: TaskFinisher,
    ) -> None:
        self._most_lost = most_lost
        self._tasks = tasks
        self._granting = granting
        self._builds = builds
        self._finisher = finisher

    def proposed(self, event: Proposed, now: float, is_tuning: bool) -> list[Command]:
        """Queue the builds of new candidates, and of the oracle of their task before its first candidate."""
        task = self._tasks[event.task_id]
        self._granting.answered(event.task_id, now)
        # A proposal without a candidate has found nothing new in a space that is nearly exhausted.
        task.proposed(event.number, is_tuning, event.exhausted or not event.candidates)
        if not is_tuning:
            return []
        if has_converged(task.best_history, event.predicted_gain):
            gains = f"{CONVERGENCE_TRIALS} trials gained less than {CONVERGENCE_GAIN:.0%}"
            expected = f"and so will the next one ({event.predicted_gain:.2%} expected)"
            return self._finisher.finish(task, f"converged: {gains}, {expected}")
        if task.oracle is not OracleState.FAILED:
            # A restarted searcher knows the records that were durable when it read them, but no candidates under way or
            # recorded since.
            fresh = [each for each in event.candidates if not task.candidates.knows(each.id)]
            if fresh and task.oracle is OracleState.NOT_BUILT:
                task.oracle_begun()
                self._builds.add(OracleBuild(task.task))
                best = task.ranking.best  # of an earlier run: new candidates are to meet it
                if best is not None and best.id not in task.candidates.artifacts:
                    self._builds.add(Trial(task.task, best, is_finalist=True))
            for candidate in fresh:
                task.candidates.begin(candidate.id)
                self._builds.add(Trial(task.task, candidate))
        return self._finisher.finish(task, task.exhausted_reason())

    def lost(self, event: ProposalLost, now: float) -> list[Command]:
        """Retry a lost proposal: the searcher starts again and reads the records. Finish its task after too many
        losses."""
        task_id, detail = event.task_id, event.detail
        task = self._tasks[task_id]
        losses = self._granting.lost(task_id, now)
        commands: list[Command] = [Log("warning", f"searcher of {task.task.workload.name}: {detail}")]
        if event.hangs:
            commands.append(RestartSearcher(task_id))
        if losses >= self._most_lost:
            self._granting.give_up(task_id)
            reason = f"its searcher failed {losses} times in a row: {detail}"
            commands += [Log("error", f"{task.task.workload.name} on {task.device_class} is given up: {reason}")]
            commands += self._finisher.finish(task, reason)
        return commands
