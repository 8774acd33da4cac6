"""The plan of a session: its tasks and limits, and which searcher searches for which task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actors.clients.calls import WINDOW_WAIT_SECS
from actors.run_hosts import RunHosts
from fleet_tune.base.config.request import RunRequest
from fleet_tune.base.device_state import DeviceState
from fleet_tune.base.domain import Limits, Record, StopRule
from fleet_tune.base.latency_estimate import CallSecs
from fleet_tune.base.results import Progress
from fleet_tune.base.search_task import SearchTask
from policies.runs.cluster.turns import RunShare
from policies.runs.plan import RunPlan
from policies.runs.planned_task import PlannedTask
from policies.runs.spared import last_snapshot
from policies.search.methods import Method


@dataclass(frozen=True)
class SessionPlan:
    """The work of a session, and its limits."""

    run_id: str
    method: Method
    seed: int
    tasks: tuple[SearchTask, ...]
    """All tasks of the network. Their sketches need not be known before
    :meth:`actors.tuning_session.TuningSession.start_task`."""
    limits: Limits
    rule: StopRule = field(default_factory=StopRule)
    """Rule that ends a measurement; the keys of ``[measure]`` in the fleet file change it."""
    settled: Mapping[str, str] = field(default_factory=dict)
    """Reason why a task gets no trial at all, by the task's id."""


def share_of(request: RunRequest, run_id: str) -> RunShare | None:
    """Return the share of a run in its cluster; None if the run has its own cluster."""
    if request.address is None:
        return None
    given = request.network
    name = type(given[0]).__name__ if isinstance(given, tuple) else Path(str(given)).name
    return RunShare(run_id, f"{name} (run {run_id})", request.priority, request.weight)


def run_plan(plan: SessionPlan, hosts: RunHosts, dealt: Mapping[str, int]) -> RunPlan:
    """The plan as the run's state knows it. ``dealt``: the number of the searcher of each task, by the task's id."""
    fleet, actors = hosts.fleet, hosts.actors
    classes = {**hosts.classes, **hosts.absent.expected}
    return RunPlan(
        run_id=plan.run_id,
        tasks=tuple(planned(entry, dealt[entry.task.id], plan.settled.get(entry.task.id, "")) for entry in plan.tasks),
        devices={name: classes[name] for name in actors.devices},
        builders=len(actors.builders),
        limits=plan.limits,
        rule=fleet.measure.applied_to(plan.rule),
        check_every_secs=fleet.measure.check_every_secs,
        timeouts={name: each.timeouts for name, each in actors.configs.items()},
        window_wait_secs=WINDOW_WAIT_SECS,
        build_timeout_secs=fleet.build.timeout_secs,
    )


def snapshot_without_trials(
    plan: SessionPlan,
    hosts: RunHosts,
    records: Sequence[Record],
    states: Mapping[str, DeviceState],
    shown_speeds: Mapping[str, float],
    calls: Mapping[str, CallSecs],
) -> Progress:
    """Return the last snapshot of a run that starts no session, since every task is settled. ``records``, ``states``,
    ``shown_speeds``, ``calls``: from the run's store."""
    run = run_plan(plan, hosts, dict.fromkeys((entry.task.id for entry in plan.tasks), 0))
    bandit = plan.method.make_task_bandit(plan.seed)
    return last_snapshot(run, bandit, records, states, hosts.absent.notices, shown_speeds, calls)


def planned(entry: SearchTask, searcher: int, settled: str) -> PlannedTask:
    """The task as the run's state knows it, before it is described. ``searcher``: the number of its searcher."""
    oracle_secs = entry.abstraction.unscheduled_secs(entry.task.workload.flop)
    return PlannedTask(entry.task, None, entry.floor_secs, oracle_secs, searcher, settled)


def deal_out(tasks: Sequence[SearchTask], most: int) -> dict[str, int]:
    """Deal the tasks out to at most ``most`` searchers, evenly within each class. Return the number of the searcher of
    each task, by the task's id."""
    counts: Counter[str] = Counter()
    dealt: dict[str, int] = {}
    for entry in tasks:
        device_class = entry.task.device_class.name
        dealt[entry.task.id] = counts[device_class] % most
        counts[device_class] += 1
    return dealt
