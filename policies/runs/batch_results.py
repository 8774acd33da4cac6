"""Results of batches and shoot-outs: what a measured, lost or postponed batch means for its device and for the run."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_tune.base.results import DeviceTime
from policies.runs.commands import Command, Log
from policies.runs.events import BatchLost, BatchMeasured, BatchPostponed, ShootOutMeasured
from policies.runs.kill_counts import KillCounts, Step
from policies.runs.phase import Phase
from policies.runs.stages.final_round import FinalRound
from policies.runs.stages.measuring import MeasureStage
from policies.runs.stages.task_finisher import TaskFinisher
from policies.runs.tasks import TaskTrials
from policies.runs.times.usage import Usage
from policies.runs.unchecked_tasks import UncheckedTasks

BatchResult = BatchMeasured | BatchLost | ShootOutMeasured | BatchPostponed


class BatchResults:
    """Takes in the results of devices. A result under an old lease is ignored."""

    def __init__(
        self,
        tasks: Mapping[str, TaskTrials],
        measuring: MeasureStage,
        finisher: TaskFinisher,
        kills: KillCounts,
        usage: Usage,
        final_round: FinalRound,
    ) -> None:
        self._measuring = measuring
        self._finisher = finisher
        self._kills = kills
        self._usage = usage
        self._final_round = final_round
        self._unchecked = UncheckedTasks(tasks)

    def is_valid(self, event: BatchResult) -> bool:
        """Return true for a result under the present lease of its device."""
        return self._measuring.leases.holds(event.device_id, event.epoch)

    def ignore(self, event: BatchResult) -> list[Command]:
        """Log a result that is not valid, unless its device has left."""
        device_id = event.device_id
        if device_id not in self._measuring.leases.slots:
            return []
        return [Log("warning", f"device {device_id}: an answer under lease {event.epoch} came late")]

    def take(self, event: BatchResult, phase: Phase, now: float) -> list[Command]:
        """Take in a valid result. Candidates that were not measured are requeued, recorded as a failure or given up."""
        told = [] if isinstance(event, BatchLost) else self._unchecked.take(event)
        return [*told, *self._taken(event, phase, now)]

    def _taken(self, event: BatchResult, phase: Phase, now: float) -> list[Command]:
        device_id = event.device_id
        match event:
            case BatchMeasured():
                for what, secs in event.waits.items():
                    if what is not DeviceTime.TURN:  # the wait for a turn was counted while it passed
                        self._usage.recount(self._measuring.leases.slots[device_id].device_class, what, secs)
                if any(outcome.blames_candidate for outcome in event.outcomes.values()):
                    self._kills.reset(Step.MEASURED)
                return [*self._measuring.measured(event, now), *self._give_up(phase)]
            case BatchLost():
                return self._measuring.batch_lost(event, now) + self._give_up(phase)
            case BatchPostponed():
                self._measuring.postponed(device_id, now)
                self._final_round.postponed(device_id)
                return []
            case ShootOutMeasured(detail=""):
                self._measuring.leases.release(device_id, now)
                return []
            case ShootOutMeasured(detail=detail):
                lost = self._measuring.lost(device_id, (), None, detail, now)
                return [Log("warning", f"shoot-out on {device_id}: {detail}"), *lost]

    def _give_up(self, phase: Phase) -> list[Command]:
        """Give up the candidates whose processes were ended from outside too often."""
        commands: list[Command] = []
        for trial, failure in self._measuring.drain_given_up():
            commands += self._finisher.give_up(trial.candidate, failure)
            commands += self._kills.add(Step.MEASURED, failure, phase is Phase.TUNING)
        return commands
