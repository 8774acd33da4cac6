"""Sketch rule "winograd": convolutions by Winograd's algorithm (CPU).

The rewritten program (:mod:`devices.sketches.rules.winograd.program`) is one parallel loop over groups of tiles. The
transformed tiles of a group stay in the cache between the three steps, and the products accumulate in registers:

    parallel over groups of output channels (K0), of rows and columns of tiles (H0, W0)
      tiles, lanes of input channels
        transformed tile                        unrolled, vectorised over input channels
      points of the tile
        output channels (K1), tiles (H1, W1)
          sums = 0                              unrolled, vectorised
          input channels (C0, C1)
            sums += data * weight               unrolled, vectorised (H2, W2, K2, lanes)
          products = sums                       unrolled, vectorised
      tiles, lanes of output channels
        tile transformed back, epilogue         unrolled, vectorised over output channels

There is a sketch for each size of tiles. An annotation of the root block,
:data:`~devices.sketches.rules.winograd.OUTPUTS`, identifies the rewritten program that its trace applies to. TVM alone
cannot replay such a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from devices.sketches.rules.loops import split_open, unroll_and_vectorize
from devices.sketches.rules.winograd import OUTPUTS
from devices.sketches.rules.winograd.convolution import convolution_of
from devices.sketches.rules.winograd.program import operations, rewritten

WINOGRAD = "winograd"
# Points of a tile in one dimension: with more, too many digits are lost, and the multiplied matrices are too small.
_MOST_POINTS = 8
# Lanes of the transforms: one of the widest registers.
_LANES = 16
_MIN_LANES = 4
# Limits of the register tile, in tiles and vectors, and of the innermost reduction loop.
_MAX_TILES = 32
_MAX_OUTER_TILES = 4
_MAX_VECTORS = 4
_MAX_REDUCTION_TILE = 64


def winograd(module: tvm.IRModule, target: Target) -> list[Schedule]:
    """Return the design spaces of ``module`` by Winograd's algorithm. There are none if the algorithm cannot compute
    it, or needs at least as many operations as the direct convolution.

    The schedules' traces hold the open decisions; a schedule's own decisions are arbitrary valid ones.
    """
    if target.kind.name != "llvm":
        return []
    convolution = convolution_of(module)
    if convolution is None:
        return []
    lanes = [_lanes(int(shape[-1])) for shape in (convolution.data.shape, convolution.result.shape)]
    if min(lanes) < _MIN_LANES:
        return []
    schedules = []
    for outputs in range(2, _MOST_POINTS - convolution.size + 2, 2):
        if operations(convolution, outputs) < convolution.operations:
            schedule = Schedule(rewritten(convolution, outputs), seed=1, debug_mask="none", error_render_level="none")
            _apply(schedule, outputs, *lanes)
            schedules.append(schedule)
    return schedules


def outputs_of(instructions: Sequence[Sequence[Any]]) -> int | None:
    """Return the outputs of a tile, in one dimension, from a trace of this rule; None for a trace of another program.
    ``instructions``: kind, inputs, attributes and outputs of each, as in the trace's JSON."""
    for kind, inputs, attributes, *_ in instructions:
        if kind == "Annotate" and attributes[0] == OUTPUTS:
            return int(inputs[1])
    return None


def _lanes(channels: int) -> int:
    return max(lanes for lanes in range(1, _LANES + 1) if channels % lanes == 0)


def _apply(sch: Schedule, outputs: int, input_lanes: int, output_lanes: int) -> None:
    names = ("data_rows", "data_tiles", "products", "output_rows", "output_tile", "epilogue")
    data_rows, data_tiles, products, output_rows, output_tile, epilogue = (
        sch.get_sblock(name, "main") for name in names
    )
    first, second, image, y, x, summed, channel = sch.get_loops(products)
    down = split_open(sch, y, 3, _MAX_OUTER_TILES)
    across = split_open(sch, x, 3, _MAX_TILES)
    vectors, lanes = sch.split(channel, [None, output_lanes])
    channels = split_open(sch, vectors, 3, _MAX_VECTORS)
    terms = split_open(sch, summed, 2, _MAX_REDUCTION_TILE)
    tile = [down[2], across[2], channels[2], lanes]
    middle = [channels[1], down[1], across[1]]
    sch.reorder(image, channels[0], down[0], across[0], first, second, *middle, *terms, *tile)
    group = sch.fuse(image, channels[0], down[0], across[0])
    sch.parallel(group)
    stored = sch.cache_write(products, 0, "local")
    sch.reverse_compute_at(stored, across[1], preserve_unit_loops=True)
    unroll_and_vectorize(sch, tile)
    start = sch.decompose_reduction(products, terms[0])
    unroll_and_vectorize(sch, sch.get_loops(start)[-len(tile) :])
    unroll_and_vectorize(sch, sch.get_loops(stored)[-len(tile) :])
    _transform_data(sch, data_rows, data_tiles, group, input_lanes)
    _transform_output(sch, output_rows, output_tile, epilogue, group, output_lanes)
    # Last, because copies of a schedule whose root block was changed share one program (TVM 0.27).
    sch.annotate(sch.get_sblock("root", "main"), OUTPUTS, outputs)


def _transform_data(sch: Schedule, rows: SBlockRV, tiles: SBlockRV, group: LoopRV, lanes: int) -> None:
    """Compute the transform of the input at the beginning of each group of tiles."""
    sch.compute_at(tiles, group, preserve_unit_loops=True)
    first, second, image, y, x, channel = sch.get_loops(tiles)[-6:]
    outer, vector = sch.split(channel, [None, lanes])
    sch.reorder(image, y, x, outer, first, second, vector)
    unroll_and_vectorize(sch, [first, second, vector])
    sch.compute_at(rows, outer, preserve_unit_loops=True)
    sch.set_scope(rows, 0, "local")
    unroll_and_vectorize(sch, sch.get_loops(rows)[-3:])


def _transform_output(
    sch: Schedule, rows: SBlockRV, tile: SBlockRV, epilogue: SBlockRV, group: LoopRV, lanes: int
) -> None:
    """Compute the transform of the products and the epilogue at the end of each group of tiles."""
    for block in (rows, tile, epilogue):
        sch.reverse_compute_at(block, group, preserve_unit_loops=True)
    image, y, x, line, column, channel = sch.get_loops(epilogue)[-6:]
    outer, vector = sch.split(channel, [None, lanes])
    sch.reorder(image, y, x, outer, line, column, vector)
    unroll_and_vectorize(sch, [line, column, vector])
    for block in (tile, rows):
        sch.compute_at(block, outer, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
        unroll_and_vectorize(sch, sch.get_loops(block)[-4:])
