"""Input of a search: one task."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import DeviceAbstraction, Task
from fleet_tune.base.sketch import Sketch


@dataclass(frozen=True)
class SearchTask:
    """A task with its sketches and the abstraction of the devices of its class.

    ``recorded``: where a dataset answers for the devices, the candidates that it has of each sketch, one decision
    matrix (n, d) for each; None where anything can be measured. ``prior``: a saved cost model that was trained on other
    records, from which the search starts; empty for none. ``own_prior``: it was trained on records of this task's own
    workload; else the tasks of a device class have the same. ``seeds``: candidates, as the position of a sketch and
    decisions, that are tried first, in this order. ``enough``: trials after which a task with a result needs no more,
    0 for no such number.
    """

    task: Task
    sketches: tuple[Sketch, ...]
    abstraction: DeviceAbstraction
    recorded: tuple[NDArray[np.int64], ...] | None = None
    prior: bytes = b""
    own_prior: bool = False
    seeds: tuple[tuple[int, tuple[int, ...]], ...] = ()
    enough: int = 0

    @property
    def floor_secs(self) -> float:
        """Seconds that no kernel of the task is believed to beat: its operations, or the fewest that a sketch takes, at
        the device's peak for them, that of the tensor cores where a sketch uses them."""
        statements = [statement for sketch in self.sketches for statement in sketch.statements]
        tensor = self.abstraction.tensor_flops if any(each.warp > 1 for each in statements) else 0.0
        narrow = [self.abstraction.peak(each.arithmetic) for each in statements if each.arithmetic != "float32"]
        fewest = [sum(each.operations for each in sketch.statements) for sketch in self.sketches if sketch.statements]
        flop = self.task.workload.flop if narrow else min([self.task.workload.flop, *fewest])
        return flop / max(tensor, *(narrow or [self.abstraction.peak_flops]))

    def without_module(self) -> SearchTask:
        """Return the task without the TVM modules, which no search reads and which are most of the size."""
        workload = dataclasses.replace(self.task.workload, module="")
        return dataclasses.replace(self, task=dataclasses.replace(self.task, workload=workload, fewer_rows=()))
