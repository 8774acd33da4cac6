"""The end of a run: for each task a shoot-out between the few candidates that may be its fastest.

:mod:`policies.measuring.shootout` decides which candidates take part. The results are stored as revisions of the
candidates' records, so that a resumed run finds them there and does not repeat the shoot-out. Builders and devices are
those of the tuning. If candidates cannot be built or measured, their task keeps its incumbent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fleet_tune.base.device_state import Admin, Health
from fleet_tune.base.domain import Candidate
from policies.measuring.deadline import shoot_out_secs
from policies.runs.commands import Command, ShootOut
from policies.runs.fleet import Fleet
from policies.runs.plan import RunPlan
from policies.runs.stages.building import BuildStage
from policies.runs.stages.leases import Work
from policies.runs.stages.measuring import MeasureStage
from policies.runs.tasks import OracleBuild, OracleState, TaskTrials, Trial, gain_at_stake
from policies.runs.times.timers import Timers

# Longest wait for a device that cannot work yet: shoot-outs are not worth more, and the next run holds those that are
# left out.
_BACK_SECS = 30.0
_AHEAD = 1  # shoot-outs that are built in addition to those that a device could begin


@dataclass(slots=True)
class PendingShootOut:
    """A shoot-out that is still to be held."""

    task: TaskTrials
    finalists: tuple[Candidate, ...]
    asked_for: bool = False
    left_out: set[str] = field(default_factory=set)
    """Ids of finalists that could not be built."""

    @property
    def entered(self) -> list[Candidate]:
        return [each for each in self.finalists if each.id in self.task.candidates.artifacts]

    @property
    def is_built(self) -> bool:
        """True once every finalist is built, or cannot be."""
        return self.task.oracle is OracleState.READY and all(
            each.id in self.task.candidates.artifacts or each.id in self.left_out for each in self.finalists
        )

    @property
    def is_void(self) -> bool:
        """True if there is nothing to decide: the oracle has failed, so that builds of its task are dropped, or too few
        finalists could be built. In a task without a checked candidate, one finalist is enough: it is checked alone."""
        least = 1 if self.task.ranking.best is None else 2
        return self.task.oracle is OracleState.FAILED or (self.is_built and len(self.entered) < least)


class FinalRound:
    """The shoot-outs of all classes. Tasks without a checked candidate come first, then those with the largest share of
    the network's time."""

    def __init__(
        self, plan: RunPlan, fleet: Fleet, builds: BuildStage, measuring: MeasureStage, timers: Timers
    ) -> None:
        self._plan = plan
        self._fleet = fleet
        self._builds = builds
        self._measuring = measuring
        self._timers = timers
        self._pending: dict[str, list[PendingShootOut]] = {}
        self._begun: dict[str, PendingShootOut] = {}  # the last one of each device
        self._open = False
        self._missing_since: dict[str, float] = {}

    @property
    def done(self) -> bool:
        """True once no shoot-out is left to begin."""
        return not any(self._pending.values())

    def open(self, tasks: Iterable[TaskTrials]) -> None:
        """List the shoot-outs to be held."""
        self._open = True
        if math.isinf(self._plan.rule.race_factor):
            return  # a dataset is collected: no candidate matters more than another
        # A task without a checked candidate has no other kernel: it comes first.
        for task in sorted(tasks, key=lambda each: (each.ranking.best is not None, -gain_at_stake(each))):
            finalists = () if task.planned.settled else task.ranking.finalists()
            if finalists:
                self._pending.setdefault(task.device_class, []).append(PendingShootOut(task, finalists))

    def close(self) -> None:
        """Begin no further shoot-out."""
        self._open = False
        self._pending.clear()

    def postponed(self, device_id: str) -> None:
        """Hold the shoot-out of a device later, since its result does not count: others use the device, or an oracle is
        awaited."""
        shoot_out = self._begun.pop(device_id, None)
        if shoot_out is not None and self._open:
            self._pending.setdefault(shoot_out.task.device_class, []).append(shoot_out)

    def not_built(self, finalist: Trial) -> None:
        """Skip a finalist that could not be built."""
        for shoot_out in self._pending.get(finalist.task.device_class.name, ()):
            if shoot_out.task.task.id == finalist.task.id:
                shoot_out.left_out.add(finalist.candidate.id)

    def start(self, now: float) -> list[Command]:
        """Build what the next shoot-outs need, bring devices back, and begin every shoot-out that can begin."""
        commands: list[Command] = []
        for device_class, shoot_outs in self._pending.items():
            shoot_outs[:] = [each for each in shoot_outs if not each.is_void]
            for device_id in self._mine(device_class):
                commands += self._look_at(device_id, now)
            idle = self._measuring.leases.idle_devices(device_class)
            for shoot_out in shoot_outs[: len(idle) + _AHEAD] if idle else ():
                self._ask_for(shoot_out)
            for device_id in idle:
                ready = next((each for each in shoot_outs if each.is_built and not each.is_void), None)
                if ready is None:
                    break
                shoot_outs.remove(ready)
                commands.append(self._begin(ready, device_id, now))
            if self._is_given_up(device_class, now):
                shoot_outs.clear()
        return commands

    def _mine(self, device_class: str) -> list[str]:
        return [each for each, slot in self._measuring.leases.slots.items() if slot.device_class == device_class]

    def _look_at(self, device_id: str, now: float) -> list[Command]:
        """Probe a device again that was lost or has not joined yet, unless it is quarantined: a quarantine outlasts the
        round."""
        state = self._fleet[device_id]
        if state.admin is Admin.ACTIVE and state.health is Health.QUARANTINED:
            return []
        return self._measuring.readiness.look_at(device_id, now)

    def _is_given_up(self, device_class: str, now: float) -> bool:
        """Return true if no device of the class has come back for long enough, or none can come back."""
        slots = [self._measuring.leases.slots[each] for each in self._mine(device_class)]
        if self._measuring.leases.idle_devices(device_class) or any(slot.work is Work.SHOOT_OUT for slot in slots):
            self._missing_since.pop(device_class, None)
            return False
        states = [self._fleet[slot.device_id] for slot in slots]
        if not any(each.admin is Admin.ACTIVE and each.health is not Health.QUARANTINED for each in states):
            return True
        ends = self._missing_since.setdefault(device_class, now) + _BACK_SECS
        if now < ends:
            self._timers.at(ends, "final round")
        return now >= ends

    def _ask_for(self, shoot_out: PendingShootOut) -> None:
        if shoot_out.asked_for:
            return
        shoot_out.asked_for = True
        task = shoot_out.task
        if task.oracle is OracleState.NOT_BUILT:  # not built yet, or dropped when the tuning ended
            task.oracle_begun()
            self._builds.add(OracleBuild(task.task))
        for candidate in shoot_out.finalists:
            if candidate.id not in task.candidates.artifacts:
                self._builds.add(Trial(task.task, candidate, is_finalist=True))

    def _begin(self, shoot_out: PendingShootOut, device_id: str, now: float) -> ShootOut:
        limit_secs = self._measuring.limit_secs(device_id, shoot_out.task.task.id)
        rule = replace(self._plan.rule, timeout_secs=limit_secs)
        entered = shoot_out.entered
        oracle_secs = self._measuring.oracle_secs(device_id, shoot_out.task.task.id)
        deadline_secs = shoot_out_secs(self._plan.window_wait_secs, len(entered), rule.timeout_secs, oracle_secs)
        epoch = self._measuring.leases.lease(device_id, Work.SHOOT_OUT, deadline_secs, now)
        ranking = shoot_out.task.ranking
        self._begun[device_id] = shoot_out
        finalists = tuple((each, ranking.next_revision(each.id)) for each in entered)
        return ShootOut(device_id, epoch, shoot_out.task.task.id, finalists, ranking.incumbent, rule, deadline_secs)
