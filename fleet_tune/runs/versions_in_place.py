"""Between records of a task that are nearly as good, the network decides: by the time of each in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devices.networks.lowering import LoweredNetwork
from devices.timing.in_place import kernel_of
from fleet_tune.domain import Record
from fleet_tune.runs.places import Place
from policies.measuring.in_place import fastest_in_place
from policies.measuring.shootout import MAX_MARGIN

MOST_VERSIONS = 3
ROUNDS = 4

Ranked = Mapping[str, Sequence[Record]]
"""By task id, the records of it that may be the fastest in the network, the best alone first."""
NextBest = Callable[[str, Sequence[Record]], Record | None]
"""The best record of a task beside these."""


def ranked(records: Mapping[str, Record], next_best: NextBest) -> dict[str, tuple[Record, ...]]:
    """For each task that has more than one, the record that the network is made of and those that alone cost up to
    ``MAX_MARGIN`` more."""
    near: dict[str, tuple[Record, ...]] = {}
    for task_id, first in records.items():
        of_task = [first]
        while len(of_task) < MOST_VERSIONS:
            other = next_best(task_id, of_task)
            if other is None or _rank_secs(other) > (1 + MAX_MARGIN) * _rank_secs(first):
                break
            of_task.append(other)
        if len(of_task) > 1:
            near[task_id] = tuple(of_task)
    return near


def networks_of(records: Mapping[str, Record], near: Ranked) -> list[dict[str, Record]]:
    """The records of the networks in which all versions are timed, beside the network of ``records`` itself."""
    count = max((len(each) for each in near.values()), default=1)
    return [
        {**records, **{task_id: each[at] for task_id, each in near.items() if at < len(each)}} for at in range(1, count)
    ]


def fastest(near: Ranked, lowered: LoweredNetwork, folders: Sequence[Path], place: Place) -> dict[str, Record]:
    """The record of each task that is the fastest in its place, where that is not the first. ``folders``: of the
    networks, that of the first records first. Raises as ``place`` does."""
    rounds: list[list[dict[str, float]]] = [[] for _ in folders]
    for number in range(ROUNDS):
        # Once forth, once back: what gets slower or faster meanwhile favours nobody.
        for at in range(len(folders)) if number % 2 == 0 else reversed(range(len(folders))):
            rounds[at].append(_secs_by_task(place.in_place(folders[at], ROUNDS).kernel_secs, lowered))
    changed: dict[str, Record] = {}
    for task_id, records in near.items():
        secs = [[each.get(task_id, 0.0) for each in of_folder] for of_folder in rounds[: len(records)]]
        if all(each > 0 for of_version in secs for each in of_version):
            number = fastest_in_place(secs)
            if number:
                changed[task_id] = records[number]
    return changed


def _rank_secs(record: Record) -> float:
    return record.measurement.rank_secs


def _secs_by_task(kernel_secs: Mapping[str, float], lowered: LoweredNetwork) -> dict[str, float]:
    """Of all calls in a run."""
    ids = {task.workload.hash: task.id for task in lowered.tasks}
    secs: dict[str, float] = {}
    for name, of_kernel in kernel_secs.items():
        task_id = ids.get(lowered.workloads.get(kernel_of(name), ""))
        if task_id is not None:
            secs[task_id] = secs.get(task_id, 0.0) + of_kernel
    return secs
