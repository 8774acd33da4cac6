"""AutoTVM's features of loops (section 4, appendix A.2): the context of each loop, and relations between contexts.

Both describe the main statement's nest. Counts are given as ``log2(1 + x)``, other values as they are.

*Context* (Table 2): a row for each loop whose extent is not always 1, from the outermost; the innermost :data:`LOOPS`
if there are more. ``within_k`` is the number of iterations of one execution of loop ``k`` (its own and those inside),
``touched_kb`` the number of distinct elements of buffer ``b`` that it touches:

==========  ==============================================================================================
column      what
==========  ==============================================================================================
0           1: there is a loop here
1           length
2 to 7      annotation, one-hot: serial, parallel (or blockIdx), vectorized, unrolled, threadIdx, vthread
8           whether it runs over a reduction axis
9           top-down: product of the lengths of the loops outside
10          bottom-up: ``within_k``
11 + 3 b    touch count of buffer ``b``: ``touched_kb``
12 + 3 b    its reuse ratio: ``within_k / touched_kb``
13 + 3 b    its stride: elements between the accesses of neighbouring iterations of this loop; 0 if it moves nothing
==========  ==============================================================================================

Buffers: first those that are written, then those that are only read, the largest first; at most :data:`BUFFERS`.

*Relation* of feature ``i`` to feature ``j`` at the threshold ``beta_t``: ``R_t = max {Z_ki : Z_kj < beta_t}`` over the
loops ``k``, 0 if there is no such loop. As in the paper, ``i`` is the reuse ratio or top-down, and ``j`` the touch
count, of each buffer. The thresholds :data:`THRESHOLDS` are touched bytes, the paper's are counts. So the relations say
how much data that fit a memory of that size are reused, and how often the program comes back to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Access, Choice, Sketch, Statement
from policies.analysis.quantities import Nest, footprint, nest, parallel_extent, vector_extent
from policies.arrays import Features, Floats, Matrix

LOOPS = 24
BUFFERS = 4
COLUMNS = 11 + 3 * BUFFERS
SHAPE = (LOOPS, COLUMNS)
THRESHOLDS = tuple(2.0**power for power in range(6, 29, 2))
"""Bytes touched: from one cache line to the largest caches."""
RELATIONS = BUFFERS * 2 * len(THRESHOLDS)

_KINDS = {"serial": 0, "parallel": 1, "blockIdx.x": 1, "blockIdx.y": 1, "vectorize": 2, "unroll": 3,
          "threadIdx.x": 4, "threadIdx.y": 4, "vthread": 5}  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """A buffer of a statement."""

    access: Access
    """The access through which the statement uses it."""
    touched: Floats
    """Distinct elements inside each depth, ``(L + 1, n)``."""
    strides: Floats
    """Elements between neighbouring iterations of each loop, ``(L, n)``."""


def buffers(loops: Nest) -> list[Buffer]:
    """The buffers of the nest's statement: first those that it writes, then those that it only reads, the largest
    first."""
    accesses = loops.statement.accesses
    written = {access.buffer: access for access in accesses if access.write}
    read = {access.buffer: access for access in accesses if access.buffer not in written}
    ordered = [*written.values(), *sorted(read.values(), key=lambda access: -prod(access.shape))]
    described = []
    for access in ordered[:BUFFERS]:
        touched = footprint(loops, access)
        described.append(Buffer(access, touched, _strides(loops, access, touched)))
    return described


def _strides(loops: Nest, access: Access, touched: Floats) -> Floats:
    """Elements between the accesses of neighbouring iterations of each loop, ``(L, n)``.

    This is the coefficient of the loop's axis in the flattened index, times the iterations of the axis inside the loop.
    For an axis of several digits it is the coefficient of the fastest. A packed buffer lies in the order of the loops.
    """
    sizes = [prod(access.shape[at + 1 :]) for at in range(len(access.shape))]
    fastest, at = [], 0
    for axis in loops.statement.axes:
        at += len(axis.digits) or 1
        fastest.append(at - 1)
    strides = np.zeros((loops.depth, loops.count), dtype=loops.extents.dtype)
    for level, along in enumerate(loops.axes):
        if access.packed:
            strides[level] = np.where(touched[level] > touched[level + 1], touched[level + 1], 0.0)
        else:
            flat = sum(abs(row[fastest[along]]) * size for row, size in zip(access.index, sizes, strict=True))
            if flat:
                strides[level] = flat * loops.inside(level + 1)[along]
    return strides


def loop_annotations(sketch: Sketch, statement: Statement, loops: Nest, matrix: Matrix) -> NDArray[np.int64]:
    """Annotation of each loop, ``(L, n)``: 0 serial, 1 parallel, 2 vectorized, 3 unrolled, 4 threadIdx, 5 vthread. They
    include annotations that follow from the limits of the post-processors."""
    kinds = np.empty((loops.depth, loops.count), dtype=np.int64)
    for at, kind in enumerate(loops.kinds):
        kinds[at] = _KINDS[kind]
    serial = kinds == 0
    if statement.unroll_column is not None:
        decision = sketch.decisions[sketch.offsets.index(statement.unroll_column)]
        if isinstance(decision, Choice):
            limit = np.array(decision.values)[matrix[:, statement.unroll_column]]
            kinds[serial & (loops.within[:-1] <= limit)] = 3
    if statement.vectorize_limit and "vectorize" not in loops.kinds and loops.depth:
        vectorised = (vector_extent(loops) > 1) & (loops.extents[-1] > 1) & serial[-1]
        kinds[-1] = np.where(vectorised, 2, kinds[-1])
    if statement.parallel_limit and not any(kind in ("parallel", "blockIdx.x") for kind in loops.kinds):
        fused = serial & (loops.outer[1:] <= parallel_extent(loops)) & (kinds != 2)
        leading = np.logical_and.accumulate(fused & ~np.array(loops.reduction, dtype=bool)[:, None], axis=0)
        kinds[leading] = 1
    return kinds


def context_features(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Features:
    """The context of every loop, ``(n, LOOPS, COLUMNS)``; see the module's docstring. Needs a described sketch."""
    del device  # the context depends on the program alone
    statement = sketch.statements[0]
    loops = nest(statement, matrix)
    return contexts(sketch, statement, loops, matrix, loops.full(1.0), LOOPS)


def contexts(sketch: Sketch, statement: Statement, loops: Nest, matrix: Matrix, outside: Floats, most: int) -> Features:
    """The context of each loop of a statement's nest, ``(n, most, COLUMNS)``, from the outermost; the innermost
    ``most`` if there are more. ``outside`` (n,): iterations of the enclosing loops of other statements."""
    features = np.zeros((len(matrix), most, COLUMNS), dtype=np.float32)
    levels = range(max(loops.depth - most, 0), loops.depth)
    kinds = loop_annotations(sketch, statement, loops, matrix)
    tables = buffers(loops)
    for row, level in enumerate(levels):
        out = features[:, row]
        out[:, 0] = 1.0
        out[:, 1] = np.log2(1.0 + loops.extents[level])
        out[np.arange(len(matrix)), 2 + kinds[level]] = 1.0
        out[:, 8] = loops.reduction[level]
        out[:, 9] = np.log2(1.0 + outside * loops.outer[level])
        out[:, 10] = np.log2(1.0 + loops.within[level])
        for number, each in enumerate(tables):
            column = 11 + 3 * number
            out[:, column] = np.log2(1.0 + each.touched[level])
            out[:, column + 1] = np.log2(1.0 + loops.within[level] / each.touched[level])
            out[:, column + 2] = np.log2(1.0 + each.strides[level])
    return features


def relation(values: Floats, over: Floats, thresholds: tuple[float, ...]) -> Floats:
    """``R_t = max {values_k : over_k < threshold_t}``, 0 if there is no such ``k``.

    ``values``, ``over``: ``(L, n)``, a row for each loop; values are not negative. The result has the shape
    ``(len(thresholds), n)``.
    """
    if not len(values):
        return np.zeros((len(thresholds), values.shape[1]))
    return np.stack([np.where(over < threshold, values, 0.0).max(axis=0) for threshold in thresholds])


def relation_features(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Features:
    """Relations of reuse ratio and of top-down to the touched bytes of each buffer, ``(n, RELATIONS)``.

    For buffer ``b``, the columns ``2 b T`` to ``2 b T + T - 1`` are the reuse ratio at the ``T`` thresholds, and the
    next ``T`` columns are top-down, all ``log2(1 + x)``. Needs a described sketch.
    """
    del device
    loops = nest(sketch.statements[0], matrix)
    features = np.zeros((len(matrix), RELATIONS), dtype=np.float32)
    count = len(THRESHOLDS)
    for number, each in enumerate(buffers(loops)):
        touched = each.touched[:-1]
        bytes_touched = touched * each.access.element_bytes
        reuse = np.log2(1.0 + loops.within[:-1] / touched)
        down = np.log2(1.0 + loops.outer[:-1])
        start = 2 * number * count
        features[:, start : start + count] = relation(reuse, bytes_touched, THRESHOLDS).T
        features[:, start + count : start + 2 * count] = relation(down, bytes_touched, THRESHOLDS).T
    return features
