"""Comparison of records of a task with nearly the same time, by the time of each kernel in its place in the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devices.networks.tasks.lowering import LoweredNetwork
from devices.timing.in_network import kernel_of
from fleet_tune.base.domain import Record
from fleet_tune.base.errors import UncheckedError
from fleet_tune.base.results import ChosenInNetwork
from fleet_tune.runs.publishing.network_runners import NetworkRunner
from policies.measuring.in_network import MOST_ROUNDS, fastest_in_network
from policies.measuring.shootout import MAX_MARGIN

MOST_VERSIONS = 3
ROUNDS = 6
assert ROUNDS <= MOST_ROUNDS
# Seconds to start a process, and to load a network and time its kernels in that process.
_START_SECS = 1.5
_TIMING_SECS = 1.0

Ranked = Mapping[str, Sequence[Record]]
"""The records of each task id that may be the fastest in the network. The record of the present network comes first."""
NextBest = Callable[[str, Sequence[Record]], Record | None]
"""Returns the best record of a task other than the given ones."""
RankSecs = Callable[[Record], float]
"""Returns the seconds by which :data:`NextBest` ranks a record."""


def ranked(records: Mapping[str, Record], next_best: NextBest, rank_secs: RankSecs) -> dict[str, tuple[Record, ...]]:
    """List the records of each task that may be the fastest in the network: the record of which the network is made,
    and records that take at most the share ``MAX_MARGIN`` longer than the best when they run alone. Tasks with only one
    such record are left out."""
    near: dict[str, tuple[Record, ...]] = {}
    for task_id, first in records.items():
        of_task = [first]
        while len(of_task) < MOST_VERSIONS:
            other = next_best(task_id, of_task)
            # The first record need not be the best alone: it may have been chosen by its time in the network.
            if other is None or rank_secs(other) > (1 + MAX_MARGIN) * min(map(rank_secs, of_task)):
                break
            of_task.append(other)
        if len(of_task) > 1:
            near[task_id] = tuple(of_task)
    return near


def networks_of(records: Mapping[str, Record], near: Ranked) -> list[dict[str, Record]]:
    """Return the records of the networks in which the other versions are timed. The network of ``records`` is not among
    them."""
    count = max((len(each) for each in near.values()), default=1)
    return [
        {**records, **{task_id: each[at] for task_id, each in near.items() if at < len(each)}} for at in range(1, count)
    ]


def expected_secs(networks: int, compile_secs: float) -> float:
    """Estimate the seconds of a choice between versions in ``networks`` networks and the present one. The former and
    the network of the chosen versions are compiled, all versions are timed in rounds, and the chosen network is run and
    timed."""
    rounds = ROUNDS * (_START_SECS + (networks + 1) * _TIMING_SECS)
    return (networks + 1) * compile_secs + rounds + 4 * (_START_SECS + _TIMING_SECS)


def fastest(
    near: Ranked, lowered: LoweredNetwork, folders: Mapping[int, Path], runner: NetworkRunner, deadline: float
) -> dict[str, tuple[Record, ChosenInNetwork]]:
    """Return the tasks whose fastest record in the network is not the first one, with this record and the reason.

    Args:
        near: the records of each task.
        lowered: the network.
        folders: the folder of the network of each version number; 0 is the present network.
        runner: runs the networks.
        deadline: time in seconds of :func:`time.monotonic`.

    Raises UncheckedError after the deadline, and the errors of ``runner``.
    """
    rounds = []
    for timed in runner.kernel_times_interleaved(list(folders.values()), ROUNDS):
        rounds.append([_secs_by_task(each.kernel_secs, lowered) for each in timed])
        if time.monotonic() > deadline:
            raise UncheckedError("it took too long")
    changed: dict[str, tuple[Record, ChosenInNetwork]] = {}
    for task_id, records in near.items():
        versions = [number for number in folders if number < len(records)]
        secs = [[each[at].get(task_id, 0.0) for each in rounds] for at in range(len(versions))]
        if not all(each > 0 for of_version in secs for each in of_version):
            continue  # a call took less than the clock resolves, or did not occur
        found = fastest_in_network(secs)
        if found is not None:
            at, verdict = found
            compared = tuple(records[each].candidate.id for each in versions)
            chosen = records[versions[at]].candidate.id
            why = ChosenInNetwork(task_id, chosen, compared, verdict.ratio, verdict.error, verdict.pairs)
            changed[task_id] = records[versions[at]], why
    return changed


def _secs_by_task(kernel_secs: Mapping[str, float], lowered: LoweredNetwork) -> dict[str, float]:
    """Return the seconds of all calls of each task in a run, by task id."""
    ids = {task.workload.hash: task.id for task in lowered.tasks}
    secs: dict[str, float] = {}
    for name, of_kernel in kernel_secs.items():
        task_id = ids.get(lowered.workload_of(kernel_of(name)))
        if task_id is not None:
            secs[task_id] = secs.get(task_id, 0.0) + of_kernel
    return secs
