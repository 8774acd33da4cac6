"""A run whose tasks are all settled: there is no work, so no process needs to be started."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from fleet_tune.base.device_state import DeviceState
from fleet_tune.base.domain import Record
from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.results import Progress
from policies.runs.commands import CatchUpRecords, StoreDeviceEvents
from policies.runs.events import (
    DeviceEventsStored,
    DevicesRestored,
    Event,
    NoticePosted,
    RecordsCaughtUp,
    RecordsCommitted,
)
from policies.runs.phase import Phase
from policies.runs.plan import RunPlan
from policies.runs.state import RunState
from policies.search.bandits import TaskBandit


def last_snapshot(
    plan: RunPlan,
    bandit: TaskBandit,
    records: Sequence[Record],
    states: Mapping[str, DeviceState],
    notices: Iterable[str] = (),
    shown_speeds: Mapping[str, float] | None = None,
    calls: Mapping[str, CallSecs] | None = None,
) -> Progress:
    """Return the snapshot of such a run at its end, at its second 0. ``plan``: a plan whose tasks are all settled.
    ``records``: records of its store. ``states``: states of its devices in the store. ``notices``: notices of the run's
    start. ``shown_speeds``, ``calls``: see :class:`~policies.runs.events.DevicesRestored`. Raises ValueError if a task
    is not settled."""
    state = RunState(plan, bandit)
    events: deque[Event] = deque(map(NoticePosted, notices))
    restored = DevicesRestored(states, shown_speeds=shown_speeds or {}, calls=calls or {})
    events += (restored, RecordsCommitted(records), RecordsCaughtUp())
    while events:
        for command in state.handle(events.popleft(), 0.0):
            match command:
                case CatchUpRecords():
                    events.append(RecordsCaughtUp())
                case StoreDeviceEvents():
                    events.append(DeviceEventsStored())
    if state.phase is not Phase.FINISHED:
        raise ValueError("not every task of the run is settled")
    return state.progress(0.0)
