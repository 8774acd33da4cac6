"""The tuned records that come with fleet-tune, for tasks without a verified record in the store.

They are in a file that ``fleet-tune records export --keep-best`` has written, of the networks of ``examples/`` on a few
common CPUs. The file may be missing or empty. Records of a task for the same processor, target and number of threads
are confirmed on the device: they are tried first, and suffice if they are right. Records for other processors and for
similar workloads only seed the search. No record counts unless it was measured here.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet_tune.base.domain import Record, Task, Workload
from fleet_tune.base.errors import RecordFileError
from fleet_tune.base.records.sharing.records_file import RecordsFile
from fleet_tune.base.records.sharing.shared import SHIPPED_VARIABLE, Source, class_of, is_found_wrong
from fleet_tune.base.records.stores.origin import Effort, Origin
from policies.runs.warm_start import Share, covered
from policies.search.bandits import kind_of_name

SHIPPED_PATH = Path(__file__).parents[2] / "data" / "records.jsonl.gz"
_CONFIRMED = 3
_OF_SIMILAR = 2
_SIMILAR = 3
_LOG = logging.getLogger(__name__)

Seed = tuple[str, str, Sequence[int]]
"""The id of a candidate's sketch, its trace, and its decisions."""


@dataclass(frozen=True)
class VerifiedCandidate:
    """A candidate of a workload that was verified on a processor."""

    record: Record
    origin: Origin

    @property
    def seed(self) -> Seed:
        candidate = self.record.candidate
        return candidate.sketch_id, self.record.trace, candidate.decisions


class ShippedRecords:
    """The verified records of a source. There are none without a source."""

    def __init__(self, source: Source | None) -> None:
        self._known: dict[str, list[VerifiedCandidate]] = {}  # by hash of the workload, the best first
        self._workloads: dict[str, Workload] = {}
        self._spent: list[tuple[Effort, Origin]] = []
        if source is None:
            return
        origins = source.run_origins()
        wrong: set[tuple[str, str]] = set()
        for page in source.pages():
            for record in page:
                origin = origins.get((record.run_id, class_of(record.task_id)))
                if is_found_wrong(record):
                    wrong.add((record.task_id, record.candidate.id))
                elif origin is not None and record.measurement.verified and record.trace:
                    self._known.setdefault(_workload_of(record.task_id), []).append(VerifiedCandidate(record, origin))
        for workload, known in self._known.items():
            right = [each for each in known if (each.record.task_id, each.record.candidate.id) not in wrong]
            self._known[workload] = sorted(right, key=lambda each: each.record.measurement.rank_secs)
        self._workloads = {task.workload.hash: task.workload for task in source.tasks()}
        self._spent = source.efforts()

    def here(self, task: Task, origin: Origin) -> list[Seed]:
        """List the best candidates of a task that were verified on the same processor, target and number of threads."""
        known = self._known.get(task.workload.hash, ())
        seeds = [each.seed for each in known if _is_same(each.origin, origin)]
        # Several versions of fleet-tune may have found the same candidate.
        return list(
            {(sketch, tuple(decisions)): (sketch, trace, decisions) for sketch, trace, decisions in seeds}.values()
        )[:_CONFIRMED]

    def suffices(self, task: Task, origin: Origin, asked: Share) -> bool:
        """Return true if at least the effort that is ``asked`` was spent on the task on the same machine."""
        spent = [
            (effort.secs, effort.trials)
            for effort, of in self._spent
            if _workload_of(effort.task_id) == task.workload.hash and _is_same(of, origin)
        ]
        return covered(asked, spent)

    def elsewhere(self, task: Task, origin: Origin) -> list[Seed]:
        """List the best candidates of a task on other processors of its kind, one of each processor in turn, because
        seconds of different processors cannot be compared."""
        return self._in_turn(task.workload.hash, origin, _CONFIRMED)

    def of_similar(self, task: Task, origin: Origin) -> list[Seed]:
        """List the best candidates of workloads of the same operators, the nearest number of operations first."""
        workload, kind = task.workload, kind_of_name(task.workload.name)
        similar = [
            each
            for each in self._workloads.values()
            if each.hash != workload.hash and kind_of_name(each.name) == kind and each.hash in self._known
        ]
        similar.sort(key=lambda each: abs(math.log((each.flop + 1) / (workload.flop + 1))))
        return [seed for each in similar[:_SIMILAR] for seed in self._in_turn(each.hash, origin, _OF_SIMILAR)]

    def told(self, task: Task) -> list[str]:
        """Describe the records of a task: a line for each processor."""
        machines: dict[str, int] = {}
        for each in self._known.get(task.workload.hash, ()):
            cpu = each.origin.cpu_model or "an unknown processor"
            name = f"{cpu} ({_cpu_of(each.origin)}{each.origin.threads} threads)"
            machines[name] = machines.get(name, 0) + 1
        return [
            f"{count} of {name} {'comes' if count == 1 else 'come'} with fleet-tune: on such a processor they are tried"
            " first, on others the search begins with them"
            for name, count in machines.items()
        ]

    def _in_turn(self, workload: str, origin: Origin, most: int) -> list[Seed]:
        by_machine: dict[tuple[str, str, int], list[VerifiedCandidate]] = {}
        for each in self._known.get(workload, ()):
            if _kind(each.origin) == _kind(origin):
                by_machine.setdefault(_machine(each.origin), []).append(each)
        # The same processor comes before others, and the same number of threads before others.
        ordered = sorted(
            by_machine.items(),
            key=lambda one: (one[0] != _machine(origin), one[0][1] != origin.cpu_model, one[0][2] != origin.threads),
        )
        rounds = max((len(known) for _, known in ordered), default=0)
        found = [known[at] for at in range(rounds) for _, known in ordered if at < len(known)]
        return [each.seed for each in found[:most]]


def shipped() -> ShippedRecords:
    """Return the records that come with fleet-tune, or the records that :data:`SHIPPED_VARIABLE` names. Empty if they
    cannot be read."""
    named = os.environ.get(SHIPPED_VARIABLE)
    return ShippedRecords(None) if named == "" else _read(SHIPPED_PATH if named is None else Path(named))


@functools.cache
def _read(path: Path) -> ShippedRecords:
    if not path.is_file() or not path.stat().st_size:
        return ShippedRecords(None)
    try:
        return ShippedRecords(RecordsFile(path))
    except RecordFileError as error:
        _LOG.debug("the records that come with fleet-tune are not used: %s", error.problem)
        return ShippedRecords(None)


def _machine(origin: Origin) -> tuple[str, str, int]:
    """Return the machine of an origin: target, processor and threads. LLVM's level of optimization does not count,
    because the candidates are confirmed by trials."""
    target = {key: value for key, value in _target_of(origin).items() if key != "opt-level"}
    return json.dumps(target, sort_keys=True) if target else origin.target, origin.cpu_model, origin.threads


def _is_same(one: Origin, other: Origin) -> bool:
    """Return true if both have the same processor, target and number of threads. Versions may differ."""
    return _machine(one) == _machine(other)


def _kind(origin: Origin) -> str:
    return str(_target_of(origin).get("kind", ""))


def _cpu_of(origin: Origin) -> str:
    target = _target_of(origin)
    name = target.get("mcpu") or target.get("arch")
    return f"{name}, " if name else ""


def _target_of(origin: Origin) -> dict[str, object]:
    try:
        target = json.loads(origin.target)
    except ValueError:
        return {}
    return target if isinstance(target, dict) else {}


def _workload_of(task_id: str) -> str:
    return task_id.partition("@")[0]
