"""The devices of a :class:`tests.helpers.run_world.World`."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Set as AbstractSet

from fleet_tune.base.device_state import HOT
from fleet_tune.base.domain import Comparison, Incumbent, Measurement, Outcome, Record
from policies.measuring.run_limit import run_limit
from policies.runs import commands as to_do
from policies.runs import events as ev
from tests.helpers.world_devices import HANG_SECS, PATIENCE_SECS, Device, overlaps, within
from tests.helpers.world_recorder import Recorder
from tests.helpers.world_settings import Settings
from tests.helpers.world_time import Timeline


class Drivers:
    """The processes that own devices, each of which does one thing at a time. ``built``: ids of what is there to be
    measured: candidates, and tasks for their oracles."""

    def __init__(
        self, settings: Settings, time: Timeline, rng: random.Random, recorder: Recorder, built: AbstractSet[str]
    ) -> None:
        self._settings, self._time, self._rng, self._recorder, self._built = settings, time, rng, recorder, built
        self.measured_under: dict[str, list[int]] = {name: [] for name in settings.devices}  # epochs
        self.met: list[tuple[str, str]] = []  # device and task of each shoot-out that was held
        self.probes: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()  # how often each candidate ran on a device
        self._mishaps: dict[str, list[tuple[float, str]]] = {
            name: sorted([(at, "hang") for at in device.hangs_at] + [(at, "die") for at in device.dies_at])
            for name, device in settings.devices.items()
        }

    def probe(self, device_id: str) -> None:
        device = self._settings.devices[device_id]
        self.probes[device_id] += 1
        if self._mishap(device_id, self._time.now, self._time.now):
            self._time.after(HANG_SECS, ev.DeviceUnreachable(device_id, "no answer", hangs=True))
        elif within(device.outages, self._time.now):
            self._time.after(1.0, ev.DeviceUnreachable(device_id, "simulated outage"))
        elif within(device.probe_fails, self._time.now):
            self._time.after(0.1, ev.DeviceProbeFailed(device_id, "simulated"))
        else:
            if within(device.drifts, self._time.now):
                self._mark(device_id)
            self._time.after(0.01, ev.DeviceProbed(device_id, 1e-3))

    def _mark(self, device_id: str) -> None:
        """The device was off of late: the last records of each task that it measured are stored once more, marked."""
        latest = [record for record in self._recorder.records if record.device_id == device_id][-6:]
        revisions = []
        for record in latest:
            of_candidate = (each for each in self._recorder.records if each.candidate.id == record.candidate.id)
            revision = 1 + max(each.revision for each in of_candidate)
            measurement = dataclasses.replace(record.measurement, speed=1 / 1.5, speed_error=0.1)
            revisions.append(self._recorder.record(record.candidate, "trace", measurement, device_id, revision))
        self._recorder.append(revisions)

    def measure(self, command: to_do.Measure) -> None:
        name = command.device_id
        device = self._settings.devices[name]
        self.measured_under[name].append(command.epoch)
        assert all(each.id in self._built for each in command.candidates), "measured before it was built"
        assert {each.task_id for each in command.candidates} <= self._built, "measured without its oracle"
        limit_secs = self._limit_secs(name)
        assert set(command.limits.values()) == {limit_secs}
        measuring_secs = 7 * limit_secs * len(command.candidates)
        assert command.deadline_secs >= 900.0 + 6 * self._settings.oracle_run_secs + measuring_secs
        if self._waits_for_others(device, name, command.epoch):
            return
        if len(self.measured_under[name]) <= device.endings:
            self._time.after(HANG_SECS, ev.BatchLost(name, command.epoch, "its process ended", outside=True))
            return
        if any(each.decisions[0] in device.ends_owner for each in command.candidates):
            self._time.after(0.1, ev.BatchLost(name, command.epoch, "its process ended", outside=True))
            return
        at, outcomes, records, detail = self._time.now, dict[str, Outcome](), list[Record](), ""
        for candidate in command.candidates:
            end = at + device.secs
            self.runs[candidate.id] += 1
            if overlaps(device.outages, at, end) or candidate.decisions[0] in device.poison:
                outcomes[candidate.id] = Outcome.DEVICE_LOST
                detail = "simulated outage"
                at = min(end, at + 5.0)
                break
            at = end
            if candidate.decisions[0] in device.killed:
                outcomes[candidate.id] = Outcome.KILLED
                continue
            cost = 1e-3 * (1 + candidate.decisions[0] % 7) * device.secs
            measurement = Measurement(
                Outcome.OK, (cost, cost, cost), build_secs=self._settings.build_secs, verified=True
            )
            records.append(self._recorder.record(candidate, "trace", measurement, name))
            outcomes[candidate.id] = Outcome.OK
        mishap = self._mishap(name, self._time.now, at)
        if mishap == "hang":
            self._time.after(HANG_SECS, ev.BatchLost(name, command.epoch, "no sign of life", hangs=True))
            # It may come to itself: its results are refused then, and its answer is too late.
            self._time.after(100.0, lambda: self._recorder.append(records, name, command.epoch))
            self._time.after(100.0, ev.BatchMeasured(name, command.epoch, outcomes))
            return
        if mishap == "die":
            # After or before it has stored them, and in any case before it could say so.
            stored = records if self._rng.random() < 0.5 else []
            self._time.later(at, lambda: self._recorder.append(stored, name, command.epoch))
            self._time.later(at + 0.1, ev.BatchLost(name, command.epoch, "its process ended", outside=True))
            return
        self._time.later(at, lambda: self._recorder.append(records, name, command.epoch))
        vitals = {"shown_speed": 1.0, HOT: float(within(device.hot, at))}
        self._time.later(at + 0.02, ev.BatchMeasured(name, command.epoch, outcomes, detail, vitals))

    def _waits_for_others(self, device: Device, name: str, epoch: int) -> bool:
        if not within(device.others, self._time.now):
            return False
        self._time.after(3.0, ev.DeviceInUse(name, "net (run 1)"))
        self._time.after(PATIENCE_SECS, ev.DeviceInUse(name, ""))
        self._time.after(PATIENCE_SECS, ev.BatchPostponed(name, epoch))
        return True

    def _limit_secs(self, name: str) -> float:
        """Return the seconds that measuring a candidate may take on the device."""
        settings = self._settings
        return run_limit(settings.candidate_secs.get(name, settings.rule.timeout_secs), settings.floor_secs)

    def shoot_out(self, command: to_do.ShootOut) -> None:
        name = command.device_id
        device = self._settings.devices[name]
        self.measured_under[name].append(command.epoch)
        assert command.rule.timeout_secs == self._limit_secs(name)
        assert all(each.id in self._built for each, _ in command.finalists)
        assert command.task_id in self._built
        if self._waits_for_others(device, name, command.epoch):
            return
        end = self._time.now + device.secs * 6 * len(command.finalists)
        if self._mishap(name, self._time.now, end):
            self._time.after(HANG_SECS, ev.BatchLost(name, command.epoch, "no sign of life", hangs=True))
            return
        if overlaps(device.outages, self._time.now, end):
            self._time.later(end, ev.ShootOutMeasured(name, command.epoch, "simulated outage"))
            return
        records = []
        incumbent = command.incumbent
        for candidate, revision in command.finalists:
            if candidate.id == incumbent.candidate_id:
                continue
            cost = 1e-3 * (1 + candidate.decisions[0] % 7) * device.secs
            ratio = cost / incumbent.cost_secs
            met = Comparison(incumbent.candidate_id, incumbent.rank_secs, ratio, 0.005, 6, ratio < 0.97)
            measurement = Measurement(Outcome.OK, (cost,) * 6, verified=True, stopped="duel", comparison=met)
            if met.faster:
                incumbent = Incumbent(candidate.id, cost, measurement.rank_secs)
            records.append(self._recorder.record(candidate, "trace", measurement, name, revision))
        self.met.append((name, command.task_id))
        self._time.later(end, lambda: self._recorder.append(records, name, command.epoch))
        self._time.later(end + 0.02, ev.ShootOutMeasured(name, command.epoch))

    def _mishap(self, name: str, begin: float, end: float) -> str:
        """Return the next mishap of the process that owns the device before ``end``; each mishap comes once."""
        coming = self._mishaps[name]
        if coming and coming[0][0] <= end:
            return coming.pop(0)[1]
        assert begin <= end
        return ""
