"""Knowledge of a task from earlier records: of its own workload measured elsewhere, and of other workloads.

Records of the same workload, from another device class or an earlier run, teach most. They are aligned with the
sketches of this task, and a model of the task's own features is trained on them. The analyzer's terms in these features
are computed for the device that measured the records in the training, and for the device of the task in a prediction,
so that the analyzer's difference between the devices is taken into account.

For records of other workloads, a model is trained whose features are the same for all tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.arrays import Floats, Groups
from policies.cost_models.protocol import CostModel, targets
from policies.cost_models.registry import BOOSTED, BOOSTED_INVARIANT, CostModelEntry
from policies.features.table import FeatureTable, joint_layout, symbolic_features
from policies.features.views import table

if TYPE_CHECKING:  # the type alone: nothing here reads a file
    from fleet_tune.base.task_data import TaskData

LEAST_RECORDS = 32
"""Least aligned records of a workload to train on: fewer say less than the records of other workloads."""

# The values of these annotations follow from the target: the number of cores, the width of a vector.
_TARGET_BOUND = frozenset({"meta_schedule.parallel", "meta_schedule.vectorize", "meta_schedule.unroll_explicit"})


@dataclass(frozen=True)
class Examples:
    """Candidates of some tasks to train on: the views that a model reads, log seconds and the task of each row."""

    features: FeatureTable
    log_secs: Floats
    groups: Groups


def skeleton(sketch: Sketch) -> str:
    """Return the sketch's trace without the values that only its target decides, and without the names of blocks, which
    are not part of a workload's hash. It is equal for the same sketch of two device classes. Raise ValueError if the
    trace is not TVM's."""
    instructions = []
    for kind, inputs, attributes, outputs in json.loads(sketch.trace_text):
        bound = kind == "Annotate" and bool(attributes) and attributes[0] in _TARGET_BOUND
        named = kind == "GetSBlock"
        instructions.append([kind, inputs[:1] if bound else inputs, [] if named else attributes, outputs])
    return json.dumps(instructions)


def aligned(source: TaskData, sketches: Sequence[Sketch]) -> tuple[TaskData, int]:
    """Move the records of ``source`` to ``sketches``, those of the same workload for another target. Return the moved
    records, and how many are left out.

    Sketches are matched by their traces' skeletons, decisions by the values that they stand for.
    """
    here = {_skeleton(sketch): sketch for sketch in sketches}
    renamed = tuple(
        replace(sketch, trace_text=here[name].trace_text) if (name := _skeleton(sketch)) in here else sketch
        for sketch in source.sketches
    )
    return replace(source, sketches=renamed).with_sketches(sketches)


def _skeleton(sketch: Sketch) -> str:
    try:
        return skeleton(sketch)
    except (ValueError, TypeError):
        return sketch.trace_text  # not a trace of TVM's: it matches itself alone


def _usable(
    sources: Iterable[TaskData], sketches: Sequence[Sketch], device: DeviceAbstraction
) -> tuple[list[tuple[int, TaskData]], int]:
    """Return the aligned sources for this kind of device that have a success among their records, each with its number;
    and the number of records that could not be aligned."""
    usable: list[tuple[int, TaskData]] = []
    lost = 0
    for number, source in enumerate(sources):
        data, left_out = aligned(source, sketches)
        lost += left_out
        if data.abstraction.kind == device.kind and data.ok.any():
            usable.append((number, data))
    return usable, lost


def teaches_own(sources: Iterable[TaskData], sketches: Sequence[Sketch], device: DeviceAbstraction) -> bool:
    """Return true if :func:`own_prior` would make a model of these sources, without training one."""
    return sum(len(data) for _, data in _usable(sources, sketches, device)[0]) >= LEAST_RECORDS


def own_examples(
    sources: Iterable[TaskData], sketches: Sequence[Sketch], device: DeviceAbstraction
) -> tuple[Examples | None, int]:
    """Return the records of the same workload elsewhere, in the joint layout of this task's sketches (None if there are
    none), and the number of records that could not be aligned.

    The analyzer's terms are those for the device that measured the records.
    """
    layout = joint_layout(sketches, device)
    tables: list[FeatureTable] = []
    costs: list[Floats] = []
    groups: list[Groups] = []
    usable, lost = _usable(sources, sketches, device)
    for number, data in usable:
        log_secs = targets(data.cost_secs)
        for sketch, matrix in zip(sketches, data.decisions, strict=True):
            if len(matrix):
                features = symbolic_features(sketch, matrix, data.abstraction)
                tables.append(layout.table(sketch.index, features))
                costs.append(log_secs[data.rows(sketch.index)])
                groups.append(np.full(len(matrix), number, dtype=np.int64))
    if not tables:
        return None, lost
    return Examples(FeatureTable.concatenate(tables), np.concatenate(costs), np.concatenate(groups)), lost


def general_examples(sources: Iterable[TaskData], views: Sequence[str]) -> Examples | None:
    """Candidates of any tasks in the views that all tasks share; None if there is no success among them."""
    tables: list[FeatureTable] = []
    costs: list[Floats] = []
    groups: list[Groups] = []
    for number, data in enumerate(sources):
        if not data.ok.any():
            continue
        log_secs = targets(data.cost_secs)
        for sketch, matrix in zip(data.sketches, data.decisions, strict=True):
            if len(matrix):
                none = np.empty((len(matrix), 0), dtype=np.float32)
                features = table(none, sketch, matrix, data.abstraction, views)
                tables.append(FeatureTable({name: features.view(name) for name in views}))
                costs.append(log_secs[data.rows(sketch.index)])
                groups.append(np.full(len(matrix), number, dtype=np.int64))
    if not tables:
        return None
    return Examples(FeatureTable.concatenate(tables), np.concatenate(costs), np.concatenate(groups))


def own_prior(
    sources: Sequence[TaskData], sketches: Sequence[Sketch], device: DeviceAbstraction, seed: int
) -> tuple[CostModel | None, int]:
    """Return a model of a task that is trained on its workload's records elsewhere (None if fewer than
    :data:`LEAST_RECORDS` are aligned), and the number of records that could not be aligned.

    ``sources``: of the same workload.
    """
    examples, lost = own_examples(sources, sketches, device)
    if examples is None or len(examples.log_secs) < LEAST_RECORDS:
        return None, lost
    model = BOOSTED.make(seed, joint_layout(sketches, device).offset_column)
    model.fit(examples.features, examples.log_secs, examples.groups)
    return model, lost


def general_prior(
    sources: Iterable[TaskData], seed: int, entry: CostModelEntry = BOOSTED_INVARIANT, *, from_analyzer: bool = True
) -> CostModel | None:
    """A model of features that all tasks share, trained on these records; None if there is no success among them.

    ``from_analyzer``: it starts from the analyzer's prediction.
    """
    examples = general_examples(sources, entry.views)
    if examples is None:
        return None
    model = entry.make_general(seed, from_analyzer=from_analyzer)
    model.fit(examples.features, examples.log_secs, examples.groups)
    return model


def by_workload(sources: Iterable[TaskData]) -> Mapping[str, list[TaskData]]:
    """Sources by the hash of their workload, in their order."""
    grouped: dict[str, list[TaskData]] = {}
    for each in sources:
        grouped.setdefault(each.task.workload.hash, []).append(each)
    return grouped
