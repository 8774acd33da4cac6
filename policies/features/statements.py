"""Features of every statement of a program. Ansor's trees, PaCM's statement branch and TenSet's perceptron read them.

They replace the papers' per-store features of the lowered program, and describe the same properties of a statement: its
operations, how its loops run, the data that it touches and moves at each level of memory, and how it accesses each
buffer. All follow from the decisions. Counts are ``log2(1 + x)``. There is a row for each statement, the main one
first, at most :data:`STATEMENTS`; rows beyond the program's statements are 0.

Columns, by :data:`PROGRAM_NAMES`: which statement it is and where it stands; operations and iterations; parallel,
vectorised and unrolled iterations; threads; spatial iterations of one reduction step, and all reduction iterations; for
each memory (registers, L1, L2, L3) the working set of the largest sub-nest that fits, the iterations outside of it, and
the operations for each byte moved into it; for each of the first :data:`BUFFERS` buffers its size, the elements that
the statement touches, and how.

Ansor's code has 164 numbers for a statement, in five groups. The differences here, and their reasons:

- 57 of operations and annotations. 16 kinds of operations are one number here: they are the same for all candidates of
  a task, and a sketch does not name them. For vectorised, unrolled and parallel loops each, Ansor has the length,
  number, extent and one of eight positions (33): a sketch fixes their number and place, so that the extents say the
  same. GPU bindings (8) are products here (blocks, threads and virtual threads), not numbers by axis.
- 90 of five buffers, 18 each. Here four buffers with six each: bytes, touched elements, run, stride, whether packed
  and whether near. Cache lines follow from bytes and runs. Reuse distances and counts (kind, iterations, bytes, count)
  follow from the working set and the iterations outside of it at four memories, which all buffers share here.
- 10 points of the curve of arithmetic intensity: here its value at each of the four memories that the device has.
- 4 of allocations: a staged buffer is a statement of its own here, whose own row has its size.
- 3 of the outer scope: iterations outside, number of loops, unrolling: the first and the last are here, the number of
  loops is fixed in a sketch.

Our variant, :func:`analyzed_statement_features`, adds columns (:data:`NAMES`) to the main statement's row: Pruner's
symbols S1 to S8 and its penalties, and the analyzer's terms as in the view ``invariant``. The papers' models read none
of these.
"""

from __future__ import annotations

from math import prod

import numpy as np

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import INLINE_LOCATION, Choice, Sketch, Statement
from policies.analysis import symbols as pruner
from policies.analysis.analyzer import analyse
from policies.analysis.launch import launch
from policies.analysis.quantities import (
    Nest,
    contiguous_run,
    enclosing_depth,
    fitting_depth,
    moved_elements,
    nest,
    parallel_extent,
    vector_extent,
)
from policies.arrays import Features, Floats, Matrix
from policies.features.invariant import NAMES as INVARIANT_NAMES
from policies.features.invariant import invariant_features
from policies.features.loops import BUFFERS, buffers

STATEMENTS = 8

_OWN = (
    "there", "main", "reduces", "own_nest", "inside", "inlined", "points", "flop", "parallel", "vector", "unroll",
    "blocks", "threads", "vthreads", "step_points", "step_reduced", "warp",
)  # fmt: skip
_MEMORIES = ("registers", "l1", "l2", "l3")
_PER_MEMORY = ("held_bytes", "outside", "intensity")
_PER_BUFFER = ("bytes", "step_touched", "run", "stride", "packed", "near")
_SYMBOLS = (*(f"s{number}" for number in range(1, 9)), "l0_m", "l0_c", "l1_m", "l1_c", "alpha_l1", "l2_m", "l2_c")
_TERMS = tuple(name for name in INVARIANT_NAMES[2:] if not name.startswith("device."))

PROGRAM_NAMES: tuple[str, ...] = (
    *_OWN,
    *(f"{memory}.{name}" for memory in _MEMORIES for name in _PER_MEMORY),
    *(f"buffer{number}.{name}" for number in range(BUFFERS) for name in _PER_BUFFER),
)
"""Names of the columns that follow from the program, without the analyzer and its symbols."""

NAMES: tuple[str, ...] = (*PROGRAM_NAMES, *_SYMBOLS, *_TERMS)
"""Names of the columns of our variant."""

SHAPE = (STATEMENTS, len(PROGRAM_NAMES))
ANALYZED_SHAPE = (STATEMENTS, len(NAMES))


def statement_features(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Features:
    """The rows of every candidate, ``(n, STATEMENTS, len(PROGRAM_NAMES))``; see the module's docstring.

    Needs a described sketch without variants.
    """
    features = np.zeros((len(matrix), *SHAPE), dtype=np.float32)
    main = nest(sketch.statements[0], matrix)
    for number, statement in enumerate(sketch.statements[:STATEMENTS]):
        out = features[:, number]
        loops = main if number == 0 else nest(statement, matrix)
        columns = [
            *_own(sketch, statement, number, main, loops, matrix),
            *_memories(loops, device),
            *_buffers(loops),
        ]
        for column, values in enumerate(columns):
            out[:, column] = values
    return features


def analyzed_statement_features(sketch: Sketch, matrix: Matrix, device: DeviceAbstraction) -> Features:
    """Return what :func:`statement_features` returns, with Pruner's symbols and the analyzer's terms:
    ``(n, STATEMENTS, len(NAMES))``."""
    features = np.zeros((len(matrix), *ANALYZED_SHAPE), dtype=np.float32)
    start = len(PROGRAM_NAMES)
    features[:, :, :start] = statement_features(sketch, matrix, device)
    analysis = analyse(sketch, matrix, device)
    main_symbols = analysis.symbols[0]
    penalties = pruner.penalties(main_symbols, pruner.limits(device))
    for column, name in enumerate(_SYMBOLS, start):
        source = main_symbols if name[0] == "s" else penalties
        features[:, 0, column] = _log(getattr(source, name))
    terms = invariant_features(sketch, matrix, device)
    features[:, 0, start + len(_SYMBOLS) :] = terms[:, 2 : 2 + len(_TERMS)]
    return features


def _log(values: Floats) -> Floats:
    return np.asarray(np.log2(1.0 + values))


def _own(
    sketch: Sketch, statement: Statement, number: int, main: Nest, loops: Nest, matrix: Matrix
) -> list[Floats | float]:
    """Columns of :data:`_OWN`."""
    place = np.zeros(len(matrix)) if number == 0 else enclosing_depth(sketch, main, statement, matrix)
    kernel = launch(loops)
    unroll: Floats | float = 0.0
    if statement.unroll_column is not None:
        decision = sketch.decisions[sketch.offsets.index(statement.unroll_column)]
        if isinstance(decision, Choice):
            unroll = _log(np.array(decision.values, dtype=np.float64)[matrix[:, statement.unroll_column]])
    points = loops.points()
    step = loops.step_depth
    return [
        1.0,
        float(number == 0),
        float(any(loops.reduction)),
        place == 0,
        place > 0,
        place == INLINE_LOCATION,
        _log(points),
        _log(points * statement.flop_per_point),
        _log(parallel_extent(loops)),
        _log(vector_extent(loops)),
        unroll,
        _log(kernel.blocks),
        _log(kernel.threads),
        _log(kernel.vthreads),
        _log(loops.spatial_points(step)),
        _log(loops.reduced_points(0)),
        float(np.log2(statement.warp)),
    ]


def _memories(loops: Nest, device: DeviceAbstraction) -> list[Floats | float]:
    """Columns of :data:`_PER_MEMORY` for each memory."""
    registers = device.registers * 4 * (device.lanes if device.kind == "cpu" else 1)
    described = buffers(loops)
    flop = loops.points() * max(loops.statement.flop_per_point, 1.0)
    resident = sum(
        (each.touched * each.access.element_bytes for each in described), np.zeros((loops.depth + 1, loops.count))
    )
    columns: list[Floats | float] = []
    for capacity in (registers, device.l1_bytes, device.l2_bytes, device.l3_bytes):
        depth = fitting_depth(resident, capacity)
        moved = sum(
            (moved_elements(loops, each.touched, depth) * each.access.element_bytes for each in described),
            np.zeros(loops.count),
        )
        columns += [
            _log(loops.pick(resident, depth)),
            _log(loops.pick(loops.outer, depth)),
            _log(flop / np.maximum(moved, 1.0)),
        ]
    return columns


def _buffers(loops: Nest) -> list[Floats | float]:
    """Columns of :data:`_PER_BUFFER` for each buffer."""
    columns: list[Floats | float] = []
    for each in buffers(loops):
        access = each.access
        columns += [
            float(np.log2(1.0 + prod(access.shape) * access.element_bytes)),
            _log(each.touched[loops.step_depth]),
            _log(contiguous_run(loops, access, loops.step_depth)),
            _log(each.strides[-1]) if loops.depth else 0.0,
            float(access.packed),
            float(access.scope != "global"),
        ]
    return columns + [0.0] * (BUFFERS * len(_PER_BUFFER) - len(columns))
