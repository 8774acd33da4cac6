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

    ``recorded``: if a dataset answers for the devices, the candidates that it has, as one decision matrix (n, d) for
    each sketch. None if every candidate can be measured. ``prior``: a saved cost model, trained on other records, from
    which the search starts; empty for none. ``own_prior``: true if the prior was trained on records of this task's own
    workload. Otherwise all tasks of a device class share one prior. ``seeds``: candidates that are tried first, in this
    order, each as the position of a sketch and its decisions. ``adapted``: candidates adapted from the best ones of
    similar tasks, which are tried if the search predicts that they may be better than its own.
    ``confirmation_trials``: number of trials after which a task with a result needs no more; 0 if there is no such
    number.
    """

    task: Task
    sketches: tuple[Sketch, ...]
    abstraction: DeviceAbstraction
    recorded: tuple[NDArray[np.int64], ...] | None = None
    prior: bytes = b""
    own_prior: bool = False
    seeds: tuple[tuple[int, tuple[int, ...]], ...] = ()
    adapted: tuple[tuple[int, tuple[int, ...]], ...] = ()
    confirmation_trials: int = 0

    @property
    def floor_secs(self) -> float:
        """Presumed lower bound on the seconds of any kernel of the task: operations divided by a peak rate of the
        device. The operations are those of the workload, or the fewest of any sketch if these are fewer and all
        sketches compute in float32. The peak is the one for the arithmetic of the sketches, or that of the tensor cores
        if a sketch uses them and it is higher."""
        statements = [statement for sketch in self.sketches for statement in sketch.statements]
        tensor = self.abstraction.tensor_flops if any(each.warp > 1 for each in statements) else 0.0
        narrow = [self.abstraction.peak(each.arithmetic) for each in statements if each.arithmetic != "float32"]
        fewest = [sum(each.operations for each in sketch.statements) for sketch in self.sketches if sketch.statements]
        flop = self.task.workload.flop if narrow else min([self.task.workload.flop, *fewest])
        return flop / max(tensor, *(narrow or [self.abstraction.peak_flops]))

    def without_module(self) -> SearchTask:
        """Return the task without its TVM modules. They are most of its size, and no search reads them."""
        workload = dataclasses.replace(self.task.workload, module="")
        return dataclasses.replace(self, task=dataclasses.replace(self.task, workload=workload, fewer_rows=()))
