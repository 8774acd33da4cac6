"""AutoTVM's loop tree (section 4, figure 3d): the context of every loop of the program, and its parent.

The low-level program is a tree: loops enclose loops, and a loop that several statements share has several children. A
row of :func:`loop_tree_features` is a loop: its context as in :mod:`policies.features.loops`, where *top-down* counts
all enclosing loops, then the row of its parent, counted from 1 (0: no parent). A loop comes after its parent. The rows
of the main statement come first, at most :data:`CHAIN` of them. A statement whose rows would exceed :data:`LOOPS` is
left out.

A statement that is computed inside a loop of the main one has one loop for each of its axes, over the region that is
needed there. A statement whose own description lists the enclosing loops
(:class:`fleet_tune.base.sketch.Statement`) is a tree of its own. An inlined statement has no loop.
"""

from __future__ import annotations

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import INLINE_LOCATION, Sketch, Statement
from policies.analysis.launch import placed_inside
from policies.analysis.quantities import Nest, enclosing_depth, nest
from policies.arrays import Features, Floats, Matrix
from policies.features.loops import COLUMNS, contexts

LOOPS = 40
CHAIN = 24
PARENT = COLUMNS
"""Column of the parent's row."""
SHAPE = (LOOPS, COLUMNS + 1)


def loop_tree_features(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Features:
    """The tree of every candidate, ``(n, LOOPS, COLUMNS + 1)``; see the module's docstring. Needs a described sketch
    without variants."""
    del device  # the tree depends on the program alone
    features = np.zeros((len(matrix), *SHAPE), dtype=np.float32)
    main = nest(sketch.statements[0], matrix)
    length = min(main.depth, CHAIN)
    cut = main.depth - length  # outer loops that have no row
    features[:, :length, :COLUMNS] = contexts(sketch, sketch.statements[0], main, matrix, main.full(1.0), length)
    features[:, :length, PARENT] = np.arange(length)
    filled = np.full(len(matrix), length)
    for number, statement in enumerate(sketch.statements[1:], 1):
        depths = enclosing_depth(sketch, main, statement, matrix)
        for depth in np.unique(depths).tolist():
            if depth == INLINE_LOCATION:
                continue
            rows = np.flatnonzero(depths == depth)
            for start in np.unique(filled[rows]).tolist():
                chosen = rows[filled[rows] == start]
                filled[chosen] += _add(features, chosen, start, sketch, number, matrix[chosen], depth, cut)
    return features


def _add(
    features: Features,
    chosen: np.ndarray[tuple[int], np.dtype[np.intp]],
    start: int,
    sketch: Sketch,
    number: int,
    matrix: Matrix,
    depth: int,
    cut: int,
) -> int:
    """Write the loops of a statement at a depth of the main one from row ``start`` on. Return how many were written: 0
    if they do not fit."""
    statement = sketch.statements[number]
    main = nest(sketch.statements[0], matrix)
    loops, outside = nest(statement, matrix), main.full(1.0)
    if depth > 0:
        loops, outside = _placed(sketch, number, main, loops, depth), np.asarray(main.outer[depth])
    count = loops.depth
    if start + count > LOOPS:
        return 0
    features[chosen, start : start + count, :COLUMNS] = contexts(sketch, statement, loops, matrix, outside, count)
    features[chosen, start : start + count, PARENT] = np.arange(start, start + count)
    if count:
        features[chosen, start, PARENT] = max(depth - cut, 0)
    return count


def _placed(sketch: Sketch, number: int, main: Nest, whole: Nest, depth: int) -> Nest:
    """The nest of a statement over the region that is needed at a depth of the main one: the outermost loop of each
    axis covers the region, the others have one iteration.

    If the statement shares no buffer with the main one, the region is unknown, and the result is the whole nest.
    """
    try:
        inside = placed_inside(sketch, number, main, depth)
    except ValueError:
        return whole
    statement: Statement = whole.statement
    extents: Floats = np.ones_like(whole.extents)
    seen: set[int] = set()
    for at, axis in enumerate(whole.axes):
        if axis not in seen:
            seen.add(axis)
            extents[at] = inside[axis]
    return Nest(statement, extents)
