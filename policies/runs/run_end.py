"""The end of a run: when its tuning ends and why, and the phases until ``Finish``, which is its last command."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_tune.base.domain import Limits
from fleet_tune.base.results import NotTried
from policies.runs.commands import CatchUpRecords, Command, Finish
from policies.runs.fleet import Fleet
from policies.runs.membership import Membership
from policies.runs.phase import Phase
from policies.runs.record_intake import RecordIntake
from policies.runs.shortfall import STOPPED, TIME_OVER, trials_not_made
from policies.runs.stages.building import BuildStage
from policies.runs.stages.final_round import FinalRound
from policies.runs.stages.granting import Granting
from policies.runs.stages.measuring import MeasureStage
from policies.runs.tasks import OracleBuild, TaskTrials
from policies.runs.times.time_budget import TimeBudget


class RunEnd:
    """The phases of a run and the reasons for which it goes from one to the next.

    ``tasks``: the tasks of the run by id. The other arguments are the parts of the run that its end depends on.
    """

    def __init__(
        self,
        limits: Limits,
        tasks: Mapping[str, TaskTrials],
        fleet: Fleet,
        builds: BuildStage,
        measuring: MeasureStage,
        granting: Granting,
        members: Membership,
        records: RecordIntake,
        final_round: FinalRound,
        budget: TimeBudget,
    ) -> None:
        self.phase = Phase.STARTING
        self.is_stop_requested = False
        self.stop_reason = ""
        """Reason for which the tuning ended early; empty while it goes on, and if nothing was left to tune."""
        self._limits = limits
        self._tasks = tasks
        self._fleet = fleet
        self._builds = builds
        self._measuring = measuring
        self._granting = granting
        self._members = members
        self._records = records
        self._final_round = final_round
        self._budget = budget
        self._devices_restored = False
        self._caught_up = False

    # What the run has heard ------------------------------------------------------------------------------------------

    def request_stop(self) -> None:
        """End the tuning with the next :meth:`end_tuning_if_due`, and hold no shoot-out after that."""
        self.is_stop_requested = True

    def devices_restored(self) -> None:
        """Note that the states of all devices are known."""
        self._devices_restored = True

    def caught_up(self) -> None:
        """Note that all records that were durable at the request have come."""
        self._caught_up = True

    def begin_budget(self, now: float) -> None:
        """Count the time budget from now on, if it does not count yet."""
        self._budget.begin(now, len(self._tasks))

    def budget_ends_secs(self, now: float) -> float | None:
        """Return the second of the run at which the time budget is used up, as far as is known now; None without a
        budget."""
        return self._budget.ends_secs(now)

    # Phases ----------------------------------------------------------------------------------------------------------

    def begin_tuning_if_ready(self) -> bool:
        """Begin the tuning once all records and states of earlier runs are read. Return true if it begins now."""
        if self.phase is not Phase.STARTING or not self._devices_restored or not self._caught_up:
            return False
        self.phase = Phase.TUNING
        self._records.begin_rate()
        return True

    def end_tuning_if_due(self, now: float) -> None:
        """End the tuning if somebody stops it, its time is over, or nothing is left to tune: measurements under way are
        stored, candidates that are only built are dropped."""
        if self.phase is not Phase.TUNING:
            return
        is_time_over = self._budget.tuning_is_over(now)
        nothing_left = self._granting.done and not self._members.is_awaited
        if not (self.is_stop_requested or is_time_over or nothing_left):
            return
        if not nothing_left:
            self.stop_reason = TIME_OVER if is_time_over else STOPPED
        self.phase = Phase.LAST_BATCHES
        for job in self._builds.drop(lambda _: True):
            if isinstance(job, OracleBuild):
                self._tasks[job.task.id].oracle_dropped()
        self._measuring.end_tuning()
        for task in self._tasks.values():
            task.end_tuning()

    def finish_if_done(self, now: float) -> list[Command]:
        """Go through the phases after the tuning as far as possible now. The last command of a run is ``Finish``."""
        commands: list[Command] = []
        leases, records = self._measuring.leases, self._records
        if self.phase is Phase.LAST_BATCHES and not leases.any_leased and not records.is_recording:
            self.phase = Phase.CATCHING_UP
            commands.append(self._catch_up())
        if self.phase is Phase.CATCHING_UP and self._caught_up:
            self.phase = Phase.SHOOT_OUTS
            self._final_round.open(self._tasks.values())
        if self.phase is Phase.SHOOT_OUTS:
            if self.is_stop_requested or self._budget.is_over(now):
                self._final_round.close()
            commands += self._final_round.start(now)
            commands += self._builds.start(now)
            if self._final_round.done and not leases.any_leased:
                self.phase = Phase.CLOSING
                commands.append(self._catch_up())
        if self.phase is Phase.CLOSING and self._caught_up and self._fleet.is_kept and not records.is_recording:
            self.phase = Phase.FINISHED
            commands.append(Finish())
        return commands

    def abort(self) -> None:
        """End the run at once: an ``Abort`` says why."""
        self.phase = Phase.FINISHED

    @property
    def not_tried(self) -> tuple[NotTried, ...]:
        """Trials that the run was asked for and did not make; none while it tunes."""
        if self.phase <= Phase.TUNING:
            return ()
        return trials_not_made(self._limits, self._tasks.values(), self.stop_reason)

    def _catch_up(self) -> CatchUpRecords:
        self._caught_up = False
        return CatchUpRecords()
