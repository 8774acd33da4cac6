"""Tasks and candidates for tests in which no program is run."""

from __future__ import annotations

from fleet_tune.base.domain import Candidate, DeviceClass, Task, Workload


def make_task(
    name: str = "w",
    device_class: str = "board",
    *,
    target: str = '{"kind":"llvm"}',
    flop: float = 1e6,
    weight: int = 1,
    module: str = "{}",
) -> Task:
    """A task of a workload whose hash is its name."""
    return Task(Workload(name, name, flop, module), DeviceClass(device_class, target), weight)


def make_candidate(task: Task | str, *decisions: int, sketch: int = 0, sketch_id: str = "s") -> Candidate:
    """A candidate of a task, or of the task of this id."""
    return Candidate(task if isinstance(task, str) else task.id, sketch, sketch_id, decisions)
