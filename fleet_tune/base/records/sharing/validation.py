"""Checks of tasks, efforts and units that somebody else wrote into a file or a server's tables. A wrong one raises
ValueError."""

from __future__ import annotations

import math

from fleet_tune.base.domain import DeviceClass, Task, Workload
from fleet_tune.base.records.stores.origin import Effort

_MOST_WEIGHT = 2**31
_UNIT_SECS = (1e-12, 1e6)  # of a probe that takes milliseconds: no quotient of two units is 0 or infinite


def checked_task(
    hash: str, name: str, flop: object, module: str, device_class: str, target: str, weight: object
) -> Task:
    """Return a task with its workload."""
    operations = _number(flop)
    if not 0 <= operations < math.inf or not isinstance(weight, int) or not 1 <= weight <= _MOST_WEIGHT:
        raise ValueError(f"no operations or calls: {flop}, {weight}")
    if "@" in hash:  # the id of a task is split there
        raise ValueError(f"no hash of a workload: {hash}")
    return Task(Workload(hash, name, operations, module), DeviceClass(device_class, target), weight)


def checked_effort(task_id: str, run_id: str, secs: object, trials: object) -> Effort:
    """Return the effort of a run. It is infinite if the search was completed."""
    spent = _number(secs), _number(trials)
    if not (spent[0] >= 0 and spent[1] >= 0):
        raise ValueError(f"no effort: {secs}, {trials}")
    return Effort(task_id, run_id, *spent)


def checked_unit(secs: object) -> float:
    """Return a unit: the seconds of the probe at speed 1."""
    value = _number(secs)
    if not _UNIT_SECS[0] <= value <= _UNIT_SECS[1]:
        raise ValueError(f"no seconds of a probe: {secs}")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float | str):
        raise ValueError(f"no number: {value}")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError("the number is too large") from error
