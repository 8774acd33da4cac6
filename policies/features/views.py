"""The views of a feature table that are the same for all tasks and devices, and how they are made.

The symbolic view (:mod:`policies.features.table`) has a layout of its own for each task. The views here have fixed
shapes, so that what is learned on one task, network or device serves the next:

==============  ===============  ===========================================================================
view            shape            content
==============  ===============  ===========================================================================
``statements``  (8, 53)          each statement of the program: :mod:`policies.features.statements`
``analyzed_     (8, 102)         the same, with Pruner's symbols and the analyzer's terms: our variant
statements``
``dataflow``    (10, 23)         Pruner's dataflow steps of the main statement: :mod:`policies.features.dataflow`
``context``     (24, 23)         AutoTVM's context of the main statement's loops: :mod:`policies.features.loops`
``loop_tree``   (40, 24)         the same of all loops, as a tree: :mod:`policies.features.loop_tree`
``relation``    (96,)            AutoTVM's context-relation features: :mod:`policies.features.loops`
``primitives``  (16, 17)         TLP's schedule primitives, in order: :mod:`policies.features.primitives`
``invariant``   (45,)            the analyzer's seconds and terms, and the device: :mod:`policies.features.invariant`
==============  ===============  ===========================================================================

All are closed-form expressions of the decision vector, computed for a whole matrix of candidates without scheduling or
lowering a program. They are finite. For a sketch that is not described, all views but ``primitives`` are 0. For a
described sketch without statements, all views but ``primitives`` and ``invariant`` are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Sketch
from policies.arrays import Features, Matrix
from policies.features import dataflow, invariant, loop_tree, primitives
from policies.features import loops as loop_context
from policies.features import statements as statement_features
from policies.features.table import SYMBOLIC, FeatureTable
from policies.space.variants import by_variant

FEATURE_VERSION = 1
"""Version of the views. It is raised whenever a column of a view is added, removed or changes its meaning; a saved
model of another version is refused."""

STATEMENTS = "statements"
ANALYZED_STATEMENTS = "analyzed_statements"
DATAFLOW = "dataflow"
CONTEXT = "context"
LOOP_TREE = "loop_tree"
RELATION = "relation"
PRIMITIVES = "primitives"
INVARIANT = "invariant"

VIEW_SHAPES: Mapping[str, tuple[int, ...]] = {
    STATEMENTS: statement_features.SHAPE,
    ANALYZED_STATEMENTS: statement_features.ANALYZED_SHAPE,
    DATAFLOW: dataflow.SHAPE,
    CONTEXT: loop_context.SHAPE,
    LOOP_TREE: loop_tree.SHAPE,
    RELATION: (loop_context.RELATIONS,),
    PRIMITIVES: primitives.SHAPE,
    INVARIANT: (len(invariant.NAMES),),
}
"""Shape of one candidate in each view but the symbolic one."""

_Maker = Callable[[Sketch, Matrix, DeviceAbstraction], Features]

_MAKERS: Mapping[str, _Maker] = {
    STATEMENTS: statement_features.statement_features,
    ANALYZED_STATEMENTS: statement_features.analyzed_statement_features,
    DATAFLOW: dataflow.dataflow_features,
    CONTEXT: loop_context.context_features,
    LOOP_TREE: loop_tree.loop_tree_features,
    RELATION: loop_context.relation_features,
    PRIMITIVES: primitives.primitive_features,
    INVARIANT: invariant.invariant_features,
}


def check_version(header: Mapping[str, Any]) -> None:
    """Raise ValueError if the model with this header reads another version of the features."""
    if header["version"] != FEATURE_VERSION:
        raise ValueError(
            f"the cost model reads version {header['version']} of the features, this is version {FEATURE_VERSION}: "
            "train it anew"
        )


def describe(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, names: Sequence[str]) -> dict[str, Features]:
    """The views of these names for every candidate, each ``(n, *VIEW_SHAPES[name])`` float32, finite.

    Raise ValueError for a view that is not made here: the symbolic view belongs to the task (``JointLayout``).
    """
    for name in names:
        if name not in _MAKERS:
            raise ValueError(f"the view '{name}' does not follow from decisions alone; here are {sorted(_MAKERS)}")
    views = {name: np.zeros((len(matrix), *VIEW_SHAPES[name]), dtype=np.float32) for name in names}
    made = views.keys() & _makeable(sketch)
    for rows, plain in by_variant(sketch, matrix):
        for name in made:
            values = views[name]
            values[rows] = _MAKERS[name](plain, matrix[rows], device)
    return views


def _makeable(sketch: Sketch) -> frozenset[str]:
    """The views that can be made from a sketch's description."""
    if sketch.statements:
        return frozenset(_MAKERS)
    return frozenset({PRIMITIVES, INVARIANT} if sketch.described else {PRIMITIVES})


def table(
    symbolic: Features, sketch: Sketch, matrix: Matrix, device: DeviceAbstraction, names: Sequence[str]
) -> FeatureTable:
    """The symbolic view together with the views of ``names``, which may include the symbolic one."""
    others = [name for name in names if name != SYMBOLIC]
    return FeatureTable({SYMBOLIC: symbolic, **describe(sketch, matrix, device, others)})
