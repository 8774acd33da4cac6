"""Invariants of a :class:`tests.helpers.run_world.World`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from fleet_tune.base.device_state import Admin, DeviceEvent, DeviceState
from policies.runs.phase import Phase
from policies.runs.plan import InFlightLimits
from policies.runs.stages.leases import Work
from policies.runs.state import RunState
from policies.runs.tasks import OracleState


class Bounds:
    """Invariants at any time: the flow is bounded, and no device or builder is idle while there is work. ``members``:
    number of devices by class. ``tasks``: number of tasks."""

    def __init__(self, flow: InFlightLimits, members: Mapping[str, int], tasks: int, builders: int) -> None:
        self._flow, self._members, self._tasks, self._builders = flow, members, tasks, builders
        self._most: Counter[str] = Counter()  # that ever might be under way, by class

    def check(self, state: RunState, now: float) -> None:
        for device_class, members in self._members.items():
            if device_class not in state._granting.by_class:
                continue
            tasks = [task for task in state.tasks.values() if task.device_class == device_class]
            in_flight = sum(task.in_flight for task in tasks)
            # It was granted when the class had more devices, or faster ones.
            granting = state._granting
            most = granting._pace.under_way(device_class, granting._usable(device_class))
            self._most[device_class] = max(self._most[device_class], most)
            assert in_flight <= self._most[device_class], (
                f"{in_flight} are under way and not {self._most[device_class]}"
            )
            assert state._measuring.leases.occupied(device_class)[0] <= members
        # Every class may be granted some at the same moment; oracles, and what lost builders leave, come on top.
        granted = self._flow.waiting_per_builder * self._builders + self._flow.min_grant * len(self._members)
        assert state._builds.waiting <= granted + self._tasks + self._builders
        assert state._builds.building <= self._builders
        if state.phase is Phase.TUNING:
            for slot in state._measuring.leases.slots.values():
                if slot.work is Work.NOTHING and slot.device_id not in state._measuring.leases._idle[slot.device_class]:
                    device = state.fleet[slot.device_id]
                    waits = max(slot.rests_until, slot.cools_until) >= now or device.until_unix_secs + 1e-3 >= now
                    assert waits or device.admin is not Admin.ACTIVE, f"nobody looks at {slot}: {device}"
            assert not (state._builds.waiting and state._builds._free), "a builder is idle while something waits"
            for device_class, idle in state._measuring.leases._idle.items():
                if not idle:
                    continue
                ready = (
                    trial
                    for trial in state._measuring.queue.of_class(device_class)
                    if not (trial.losses or trial.alone)
                    and state.tasks[trial.candidate.task_id].oracle is OracleState.READY
                )
                least = state._measuring._pace.least_batch(device_class)
                count = len(list(itertools.islice(ready, least)))
                enough = count >= least or (count and state._builds.nothing_soon(now))
                assert not enough, "a device is idle while there is work for it"


def check_leases(events: Sequence[DeviceEvent], measured_under: Mapping[str, Sequence[int]]) -> None:
    """Epochs only grow, by one for each lease, and nothing ran without a lease of its own."""
    before: dict[str, DeviceState] = {}
    for event in events:
        assert event.reason
        earlier = before.get(event.device_id)
        if earlier is not None:
            assert event.state.lease.epoch == earlier.lease.epoch + (event.kind == "leased")
        if event.kind == "leased":
            assert event.state.word in ("good",)
        before[event.device_id] = event.state
    for name, epochs in measured_under.items():
        leased = [e.state.lease.epoch for e in events if e.device_id == name and e.kind == "leased"]
        assert epochs == leased == sorted(set(leased))
