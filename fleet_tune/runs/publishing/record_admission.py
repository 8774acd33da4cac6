"""Admission of records to a network: the best record of each task with which the network is right.

A kernel that was right when it was measured may still be wrong in the network: on other values, at other addresses, or
beside other kernels. The network is compared with its framework as a whole, and if it is wrong the kernels at fault are
found by bisection. This module compiles nothing itself: ``judge`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fleet_tune.base.domain import Measurement, Record
from fleet_tune.base.errors import FleetTuneError

# Records of a task that are tried before it stays unscheduled.
ATTEMPTS = 4

Judge = Callable[[Mapping[str, Record]], Measurement | None]
"""Returns the fault of a network that is made of these records, by task id, and of unscheduled kernels for the other
tasks. None if the network is right."""


class UnscheduledWrongError(FleetTuneError):
    """The network is wrong without any schedule: no tuned kernel is at fault."""


class Candidates(Protocol):
    """The source of the records of tasks."""

    def best(self, task_id: str) -> Record | None:
        """Return the best record of the task that is not known to be wrong."""

    def blame(self, record: Record, fault: Measurement) -> None:
        """Withdraw a record whose kernel is wrong in the network."""

    def supply(self, task_ids: Sequence[str]) -> None:
        """Find records for tasks that have none left, if possible."""


@dataclass
class AdmittedRecords:
    """Records of which a network is made, and the faults of the records that were refused."""

    records: dict[str, Record] = field(default_factory=dict)
    """The admitted record of each task id. The network is right with all of them."""
    faults: dict[str, list[Measurement]] = field(default_factory=dict)
    """The faults of the refused records of each task id, in order."""


def admit(task_ids: Iterable[str], candidates: Candidates, judge: Judge) -> AdmittedRecords:
    """Choose the records of a network of these tasks: the best record of each task; if the network is wrong with it,
    the next best; and none after ``ATTEMPTS`` refused records. A fault that does not come a second time blames no
    record: a machine may have been short of memory for a moment.

    Raises :class:`UnscheduledWrongError` if the network is wrong without any record, and the errors of ``judge``."""
    admitted = AdmittedRecords()
    waiting = list(task_ids)
    supplied: set[str] = set()
    unscheduled_is_right = False
    while waiting:
        missing = [each for each in waiting if each not in supplied and candidates.best(each) is None]
        if missing:
            supplied.update(missing)
            candidates.supply(missing)
        found = {each: candidates.best(each) for each in waiting}
        chosen = {each: record for each, record in found.items() if record is not None}
        if not chosen:
            break
        fault = _lasting(judge, {**admitted.records, **chosen})
        if fault is None:
            admitted.records.update(chosen)
            break
        if not unscheduled_is_right:
            _check_unscheduled(judge)
            unscheduled_is_right = True
        right, faults = bisect(admitted.records, chosen, fault, judge)
        admitted.records.update({each: chosen[each] for each in right})
        for task_id, wrong in faults.items():
            candidates.blame(chosen[task_id], wrong)
            admitted.faults.setdefault(task_id, []).append(wrong)
        waiting = [each for each in faults if len(admitted.faults[each]) < ATTEMPTS]
    if not admitted.records and not unscheduled_is_right:
        _check_unscheduled(judge)
    return admitted


def bisect(
    right: Mapping[str, Record], doubtful: Mapping[str, Record], fault: Measurement, judge: Judge
) -> tuple[list[str], dict[str, Measurement]]:
    """Divide doubtful records into records with which the network is still right, and records at fault.

    If k of n records are at fault, this takes about ``2 k log2(n / k)`` judgements. Before a record is blamed, it is
    judged once more without other doubtful records.

    Args:
        right: the record of each task id with which the network is right.
        doubtful: the records to divide, by task id.
        fault: the fault of the network with all of these records.
        judge: judges a network.

    Return the task ids whose records are right together with ``right`` and with each other, and the fault of each other
    task id.
    """
    good = dict(right)
    admitted: list[str] = []
    faults: dict[str, Measurement] = {}

    def divide(part: list[str], known: Measurement | None) -> None:
        together = {**good, **{each: doubtful[each] for each in part}}
        wrong = judge(together) if known is None else known
        if wrong is not None and len(part) == 1:
            wrong = judge(together)  # the known fault may be of other records, or have come only once
        if wrong is None:
            good.update(together)
            admitted.extend(part)
        elif len(part) == 1:
            faults[part[0]] = wrong
        else:
            half, before = len(part) // 2, len(faults)
            divide(part[:half], None)
            # If the first half is right, the second half with it was judged above.
            divide(part[half:], wrong if len(faults) == before else None)

    divide(list(doubtful), fault)
    return admitted, faults


def _lasting(judge: Judge, records: Mapping[str, Record]) -> Measurement | None:
    """Return the fault of the network of these records if two judgements find one, else None."""
    return None if judge(records) is None else judge(records)


def _check_unscheduled(judge: Judge) -> None:
    fault = _lasting(judge, {})
    if fault is not None:
        raise UnscheduledWrongError(fault.detail)
