"""The devices of a :class:`tests.helpers.run_world.World`, and what goes wrong with them."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_tune.base.device_state import Admin
from fleet_tune.base.domain import Candidate, DeviceClass, Task, Workload
from policies.runs import events as ev

Spans = tuple[tuple[float, float], ...]
HANG_SECS = 15.0  # until missed signs of life are believed
PATIENCE_SECS = 60.0  # of what is to be measured where another run has the device


def task_of(device_class: str, name: str = "matmul", weight: int = 1) -> Task:
    return Task(Workload(f"{name}-{device_class}", name, 1e6, "{}"), DeviceClass(device_class, "{}"), weight)


def candidate_of(task: Task, number: int) -> Candidate:
    return Candidate(task.id, 0, "s", (number, 7))


@dataclass
class Device:
    """One device: its class, how long it takes for a candidate, and what goes wrong with it.

    ``outages``: when it does not answer. ``poison``: numbers of candidates that take it down. ``probe_fails``: when it
    answers and its probe does not run. ``hangs_at``: when the process that owns it stops answering, until it is
    restarted; each once. ``dies_at``: when that process ends in the middle of a batch, of which it has stored a part or
    all without saying so; each once. ``drifts``: when its probe finds it off. ``endings``: over how many batches, its
    first, the run ends that process for its silence. ``killed``: numbers of candidates whose session is always killed;
    ``ends_owner``: of those over which the process that owns the device always ends. ``others``: when another run has
    the device, and does not give it away. ``hot``: when heat lowers its clock.
    """

    device_class: str
    secs: float = 0.1
    outages: Spans = ()
    poison: frozenset[int] = frozenset()
    probe_fails: Spans = ()
    hangs_at: tuple[float, ...] = ()
    dies_at: tuple[float, ...] = ()
    drifts: Spans = ()
    endings: int = 0
    killed: frozenset[int] = frozenset()
    ends_owner: frozenset[int] = frozenset()
    others: Spans = ()
    hot: Spans = ()


def order(device_id: str, admin: Admin) -> ev.AdminRequested:
    return ev.AdminRequested(device_id, admin, "test")


def within(spans: Spans, at: float) -> bool:
    return any(begin <= at < end for begin, end in spans)


def overlaps(spans: Spans, begin: float, end: float) -> bool:
    return any(start < end and begin < stop for start, stop in spans)
