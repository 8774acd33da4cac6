"""What a session tunes, and who searches for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet_tune.domain import Limits, StopRule
from fleet_tune.search_task import SearchTask
from policies.runs.plan import PlannedTask


@dataclass(frozen=True)
class SessionPlan:
    """What a session tunes, and when it ends. ``tasks``: all of the network, which are tuned from when they
    :meth:`actors.tuning_session.TuningSession.join`; their sketches need not be known before. ``rule``: when a
    measurement ends; the fleet file may add a warm-up and a flush. ``settled``: by the id of a task, why it gets no
    trial at all."""

    run_id: str
    method: str
    seed: int
    tasks: tuple[SearchTask, ...]
    limits: Limits
    rule: StopRule = field(default_factory=StopRule)
    settled: Mapping[str, str] = field(default_factory=dict)


def planned(entry: SearchTask, searcher: int, settled: str) -> PlannedTask:
    """A task as the run's state knows it, before it is described. ``searcher``: the number of its searcher."""
    oracle_secs = entry.abstraction.unscheduled_secs(entry.task.workload.flop)
    return PlannedTask(entry.task, None, entry.floor_secs, oracle_secs, searcher, settled)


def dealt_out(tasks: Sequence[SearchTask], most: int) -> dict[str, int]:
    """The number of the searcher of each task id: at most so many, each with as many tasks of every device class."""
    counts: Counter[str] = Counter()
    dealt: dict[str, int] = {}
    for entry in tasks:
        device_class = entry.task.device_class.name
        dealt[entry.task.id] = counts[device_class] % most
        counts[device_class] += 1
    return dealt
