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
from policies.runs.stages.leases import DeviceSlot, Leases, Work
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
        slot = self._leases.slots[device_id]
        if slot.work is not Work.NOTHING:
            return []
        state = self._fleet[device_id]
        due = self._tuning and now >= slot.check_due_secs
        cools = self._tuning and now < slot.cools_until
        if health.may_work(state) and not due and not cools:
            self._leases.set_idle(slot)
            return self._patience.hopeful(slot.device_class)
        self._leases.set_busy(slot)
        if now < slot.rests_until:
            return []
        if state.admin is not Admin.ACTIVE:
            slot.detail = f"it is in {state.admin}"
            return self._give_up_if_hopeless(slot, now)
        if cools:
            slot.detail = "it cools down"
            return []
        if state.health is Health.QUARANTINED:
            if not self._fleet.quarantine_is_over(device_id, now):
                slot.detail = "it is quarantined"
                self._timers.at(self._fleet.quarantine_ends(device_id), device_id)
                return self._give_up_if_hopeless(slot, now)
            self._fleet.happened(device_id, health.ProbationBegun(), now)
        slot.work = Work.CHECK
        return [ProbeDevice(device_id)]

    def checked(self, event: DeviceProbed | DeviceProbeFailed | DeviceUnreachable, now: float) -> list[Command]:
        """Apply the result of a check. A failed one is retried after ``retry_secs``."""
        device_id = event.device_id
        slot = self._leases.slots.get(device_id)
        if slot is None or slot.work is not Work.CHECK:
            return []
        slot.work = Work.NOTHING
        if isinstance(event, DeviceProbed):
            slot.check_due_secs = now + self._plan.check_every_secs
            self._timers.at(slot.check_due_secs, device_id)
            self._fleet.happened(device_id, health.Joined(), now)
            self._fleet.happened(device_id, health.ProbePassed(event.secs), now)
            return []
        commands: list[Command] = []
        slot.detail, slot.failed_secs = event.detail, now
        if isinstance(event, DeviceProbeFailed):
            self._fleet.happened(device_id, health.Joined(), now)
            self._fleet.happened(device_id, health.ProbeFailed(event.detail), now)
        else:
            commands.append(Log("warning", f"device {device_id}: {event.detail}"))
            if event.outside:
                self.interrupted(slot, event.detail, now)
            else:
                self._fleet.happened(device_id, health.Lost(event.detail), now)
            if event.hangs:
                commands.append(RestartDevice(device_id))
        slot.rests_until = now + self._plan.flow.backoff_secs
        self._timers.at(slot.rests_until, device_id)
        return [*commands, *self._give_up_if_hopeless(slot, now)]

    def measured(self, slot: DeviceSlot, is_hot: bool, now: float) -> list[Command]:
        """Note whether heat lowered the clock at the end of a batch, and let the device cool down. Return the log lines
        about it."""
        slot.hot_batches = slot.hot_batches + 1 if is_hot else 0
        secs = cooling.rest_secs(slot.hot_batches)
        if not secs:
            return []
        slot.cools_until = now + secs
        self._timers.at(slot.cools_until, slot.device_id)
        return [Log("info", f"device {slot.device_id} is hot: it cools down for {secs:g} s")]

    def interrupted(self, slot: DeviceSlot, detail: str, now: float) -> None:
        """Note that the process that owns the device was ended from outside. If that happens again and again, the
        device counts as lost, and its quarantines grow longer and longer."""
        slot.interruptions += self._fleet[slot.device_id].connectivity is Connectivity.ONLINE
        often = slot.interruptions > self._plan.flow.max_kills
        self._fleet.happened(slot.device_id, health.Lost(detail) if often else health.OwnerEnded(detail), now)

    def _give_up_if_hopeless(self, slot: DeviceSlot, now: float) -> list[Command]:
        return self._patience.give_up_if_hopeless(slot, now) if self._tuning else []
