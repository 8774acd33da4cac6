"""Readiness of devices: checks, quarantine and probation, and retries, until a device may be leased.

A device is ready while :mod:`policies.measuring.health` allows it: it answers, its probe has run, it is not in
quarantine, and people want it used.
"""

from __future__ import annotations

from fleet_tune.base.device_state import Admin, Connectivity, Health
from policies.measuring import cooling, health
from policies.runs.commands import Command, Log, ProbeDevice, RestartDevice
from policies.runs.events import DeviceProbed, DeviceProbeFailed, DeviceUnreachable
from policies.runs.fleet import Fleet
from policies.runs.plan import RunPlan
from policies.runs.stages.class_patience import ClassPatience
from policies.runs.stages.leases import Lane, Leases, Work
from policies.runs.times.timers import Timers


class Readiness:
    """Checks the devices that have no work, and enters those that are ready as idle devices in ``leases``."""

    def __init__(self, plan: RunPlan, fleet: Fleet, leases: Leases, patience: ClassPatience, timers: Timers) -> None:
        self._plan = plan
        self._fleet = fleet
        self._leases = leases
        self._patience = patience
        self._timers = timers
        self._tuning = True

    def end_tuning(self) -> None:
        """From now on, do not probe devices that work, and do not end the run for a missing device."""
        self._tuning = False

    def look_at(self, device_id: str, now: float) -> list[Command]:
        """Take the next step for a device that has no work: check it, or enter it as idle."""
        lane = self._leases.lanes[device_id]
        if lane.work is not Work.NOTHING:
            return []
        state = self._fleet[device_id]
        due = self._tuning and now >= lane.check_due_secs
        cools = self._tuning and now < lane.cools_until
        if health.may_work(state) and not due and not cools:
            self._leases.set_idle(lane)
            return self._patience.hopeful(lane.device_class)
        self._leases.set_busy(lane)
        if now < lane.rests_until:
            return []
        if state.admin is not Admin.ACTIVE:
            lane.detail = f"it is in {state.admin}"
            return self._give_up_if_hopeless(lane, now)
        if cools:
            lane.detail = "it cools down"
            return []
        if state.health is Health.QUARANTINED:
            if not self._fleet.quarantine_is_over(device_id, now):
                lane.detail = "it is quarantined"
                self._timers.at(self._fleet.quarantine_ends(device_id), device_id)
                return self._give_up_if_hopeless(lane, now)
            self._fleet.happened(device_id, health.ProbationBegun(), now)
        lane.work = Work.CHECK
        return [ProbeDevice(device_id)]

    def checked(self, event: DeviceProbed | DeviceProbeFailed | DeviceUnreachable, now: float) -> list[Command]:
        """Apply the result of a check. A failed one is retried after ``retry_secs``."""
        device_id = event.device_id
        lane = self._leases.lanes.get(device_id)
        if lane is None or lane.work is not Work.CHECK:
            return []
        lane.work = Work.NOTHING
        if isinstance(event, DeviceProbed):
            lane.check_due_secs = now + self._plan.check_every_secs
            self._timers.at(lane.check_due_secs, device_id)
            self._fleet.happened(device_id, health.Joined(), now)
            self._fleet.happened(device_id, health.ProbePassed(event.secs), now)
            return []
        commands: list[Command] = []
        lane.detail, lane.failed_secs = event.detail, now
        if isinstance(event, DeviceProbeFailed):
            self._fleet.happened(device_id, health.Joined(), now)
            self._fleet.happened(device_id, health.ProbeFailed(event.detail), now)
        else:
            commands.append(Log("warning", f"device {device_id}: {event.detail}"))
            if event.outside:
                self.interrupted(lane, event.detail, now)
            else:
                self._fleet.happened(device_id, health.Lost(event.detail), now)
            if event.hangs:
                commands.append(RestartDevice(device_id))
        lane.rests_until = now + self._plan.flow.retry_secs
        self._timers.at(lane.rests_until, device_id)
        return [*commands, *self._give_up_if_hopeless(lane, now)]

    def measured(self, lane: Lane, is_hot: bool, now: float) -> list[Command]:
        """Note whether heat lowered the clock at the end of a batch, and let the device cool down. Return the log lines
        about it."""
        lane.hot_batches = lane.hot_batches + 1 if is_hot else 0
        secs = cooling.rest_secs(lane.hot_batches)
        if not secs:
            return []
        lane.cools_until = now + secs
        self._timers.at(lane.cools_until, lane.device_id)
        return [Log("info", f"device {lane.device_id} is hot: it cools down for {secs:g} s")]

    def interrupted(self, lane: Lane, detail: str, now: float) -> None:
        """Note that the process that owns the device was ended from outside. If that happens again and again, the
        device counts as lost, and its quarantines grow longer and longer."""
        lane.interruptions += self._fleet[lane.device_id].connectivity is Connectivity.ONLINE
        often = lane.interruptions > self._plan.flow.kills
        self._fleet.happened(lane.device_id, health.Lost(detail) if often else health.OwnerEnded(detail), now)

    def _give_up_if_hopeless(self, lane: Lane, now: float) -> list[Command]:
        return self._patience.give_up_if_hopeless(lane, now) if self._tuning else []
