"""Sketch rule "attention": scores, softmax and the product with the values in one kernel (CPU).

The rewritten program (:mod:`devices.sketches.rules.attention.program`) is one parallel loop over groups of rows. Only
the scores of the current groups exist, and they stay in the cache:

    parallel over samples, heads, vectors of columns
      keys                                       vectorised over columns
    parallel over samples, heads, groups of rows (G0)
      queries
      vectors of columns (V0)
        scores = 0                               unrolled, vectorised
        terms (K0, K1)
          scores += query * key                  unrolled, vectorised (G1, rows, V1, lanes)
        masked                                   unrolled, vectorised
      largest, weights, totals                   vectorised over columns
      vectors of the result (D0)
        sums = 0                                 unrolled, vectorised
        columns (C0, C1)
          sums += weight * value                 unrolled, vectorised (G1, rows, D1, lanes)
        output                                   unrolled, vectorised

An annotation of the root block, :data:`~devices.sketches.rules.attention.GRANULE`, identifies the rewritten program
that a trace applies to. TVM alone cannot replay such a trace.
"""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from devices.sketches.rules.attention import GRANULE
from devices.sketches.rules.attention.pattern import attention_of
from devices.sketches.rules.attention.program import LANES, granule, lanes_of, rewritten
from devices.sketches.rules.loops import split_open, unroll_and_vectorize

ATTENTION = "attention"
MIN_ROWS = 4
MIN_LANES = 4
# Limits of the register tiles, in granules and vectors, and of the unrolled steps of their sums.
_MAX_GRANULES = 4
_MAX_VECTORS = 4
_MAX_STEPS = 8


def fits(rows: int | None, columns: int | None, width: int) -> bool:
    """Return true if the rule applies to an attention of so many rows and columns (None: dynamic), with values of that
    width."""
    enough = (rows is None or rows >= MIN_ROWS) and (columns is None or columns >= LANES)
    return enough and lanes_of(width) >= MIN_LANES


def attention(module: tvm.IRModule, target: Target) -> list[Schedule]:
    """Return the design space of ``module`` (its function ``main``); none if it is no attention.

    The schedule's trace holds the open decisions; its own decisions are arbitrary valid ones.
    """
    if target.kind.name != "llvm":
        return []
    found = attention_of(module)
    if found is None or not fits(found.rows, found.columns, found.width):
        return []
    schedule = Schedule(rewritten(found), seed=1, debug_mask="none", error_render_level="none")
    _apply(schedule)
    # At the end: see the rule "winograd".
    schedule.annotate(schedule.get_sblock("root", "main"), GRANULE, granule(found.rows))
    return [schedule]


def _apply(sch: Schedule) -> None:
    keys, queries, scores, masked, lane_largest, largest, weights, lane_totals, totals, sums, output = (
        sch.get_sblock(name, "main")
        for name in (
            *("keys", "queries", "scores", "masked", "lane_largest", "largest", "weights", "lane_totals", "totals"),
            *("sums", "output"),
        )
    )
    *outer, granules, rows, vectors, lane = sch.get_loops(output)
    groups, inner = split_open(sch, granules, 2, _MAX_GRANULES)
    far, near = split_open(sch, vectors, 2, _MAX_VECTORS)
    sch.reorder(*outer, groups, far, inner, rows, near, lane)
    group = sch.fuse(*outer, groups)
    sch.parallel(group)
    unroll_and_vectorize(sch, [inner, rows, near, lane])
    _sum_in_registers(sch, sums, far)
    for block in (totals, lane_totals, weights, largest, lane_largest, masked):
        sch.compute_at(block, group, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(weights)[-1])
    for block in (lane_totals, lane_largest):
        along, lanes = sch.get_loops(block)[-2:]
        sch.set_scope(block, 0, "local")
        sch.vectorize(lanes)
        start = sch.decompose_reduction(block, along)
        sch.vectorize(sch.get_loops(start)[-1])
    for block in (totals, largest):
        sch.set_scope(block, 0, "local")
    inner, rows, vectors, lane = sch.get_loops(masked)[-4:]
    far, near = split_open(sch, vectors, 2, _MAX_VECTORS)
    sch.reorder(far, inner, rows, near, lane)
    unroll_and_vectorize(sch, [inner, rows, near, lane])
    _sum_in_registers(sch, scores, far)
    sch.compute_at(queries, group, preserve_unit_loops=True)
    *around, _, lanes = sch.get_loops(keys)
    sch.parallel(sch.fuse(*around))
    sch.vectorize(lanes)


def _sum_in_registers(sch: Schedule, block: SBlockRV, at: LoopRV) -> None:
    """Compute a block of sums in the loop ``at``, for the tile that its consumer reads there, and schedule it so that
    the sums are in registers."""
    sch.compute_at(block, at, preserve_unit_loops=True)
    sch.set_scope(block, 0, "local")
    inner, rows, vectors, summed, lane = sch.get_loops(block)[-5:]
    steps = split_open(sch, summed, 2, _MAX_STEPS)
    tile = [inner, rows, vectors, lane]
    sch.reorder(*steps, *tile)
    unroll_and_vectorize(sch, tile)
    start = sch.decompose_reduction(block, steps[0])
    unroll_and_vectorize(sch, sch.get_loops(start)[-len(tile) :])
