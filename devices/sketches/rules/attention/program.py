"""The program of an attention that computes one group of rows at a time.

    keys                   key[.., k, c], in vectors of columns
    queries                query[.., r, k]
    scores, masked         sums of the scores, and the inputs of the softmax
    lane_largest, largest  the largest of each row: of each lane, then of all
    weights                exp(masked - largest)
    lane_totals, totals    sums of the weights
    sums                   sums of weights times values
    output                 sums / totals, written to the program's result

Rows are grouped in granules of a few rows, and columns in vectors. The last granule and the last vector end with their
axis and overlap the one before. Rows in two granules are computed twice, with equal results. Columns in two vectors
have a weight of zero in the second one, so their values are summed up once. There is no remainder and no padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc
from tvm_ffi import structural_map

from devices.sketches.nests import FLOAT, Nests, nest, variables_of
from devices.sketches.rules.attention.pattern import Attention

LANES = 16
"""Columns of a vector, which fill one of the widest registers."""
_GRANULES = (8, 7, 6, 5, 4)


def granule(rows: int) -> int:
    """Return the number of rows of a granule: the one with which the fewest rows are computed twice. If several are
    equal, it is the largest."""
    return min((each for each in _GRANULES if each <= rows), key=lambda each: ceil(rows / each) * each)


def lanes_of(width: int) -> int:
    """Return the lanes of the vectors along the last axis of the result."""
    return next(each for each in (LANES, 8, 4, 1) if width % each == 0)


def rewritten(attention: Attention) -> tvm.IRModule:
    """Return the program of an attention with fixed extents."""
    batch, rows, columns, terms = attention.batch, attention.rows, attention.columns, attention.terms
    size, lanes = granule(rows), lanes_of(attention.width)
    groups, vectors = (ceil(rows / size), size), ceil(columns / LANES)
    whole = columns // LANES * LANES
    program = Nests(attention.index)
    keys = program.buffer("keys", *batch, vectors, terms, LANES)
    queries = program.buffer("queries", *batch, *groups, terms)
    scores = program.buffer("scores", *batch, *groups, vectors, LANES)
    masked = program.buffer("masked", *batch, *groups, vectors, LANES)
    lane_largest = program.buffer("lane_largest", *batch, *groups, LANES)
    largest = program.buffer("largest", *batch, *groups)
    weights = program.buffer("weights", *batch, *groups, vectors, LANES)
    lane_totals = program.buffer("lane_totals", *batch, *groups, LANES)
    totals = program.buffer("totals", *batch, *groups)
    sums = program.buffer("sums", *batch, *groups, attention.width // lanes, lanes)

    def row(at: tuple[Any, ...]) -> Any:
        return tirx.min(at[-2] * size, rows - size) + at[-1]

    def column(vector: Any, lane: Any) -> Any:
        return tirx.min(vector * LANES, columns - LANES) + lane

    analyzer = Analyzer()

    def simplified(value: Any, at: Sequence[Any], shape: Sequence[Any]) -> Any:
        """Return a value without divisions that are redundant for the extents of its variables."""
        for variable, extent in zip(at, shape, strict=True):
            analyzer.bind(variable, tvm.ir.Range(tirx.const(0, attention.index), extent), allow_override=True)

        def load(node: Any) -> Any:
            return node.source[tuple(map(analyzer.simplify, node.indices))]

        return structural_map(value, (TensorLoad, load))

    def key(*at: Any) -> Any:
        *outer, vector, term, lane = at
        return simplified(attention.key([*outer, term, column(vector, lane)]), at, keys.shape)

    def query(*at: Any) -> Any:
        *outer, term = at
        return simplified(attention.query([*outer[:-2], row(tuple(outer)), term]), at, queries.shape)

    def score(*at: Any) -> Any:
        *outer, vector, lane, term = at
        return queries[(*outer, term)] * keys[(*outer[:-2], vector, term, lane)]

    def mask(*at: Any) -> Any:
        *outer, vector, lane = at
        place = column(vector, lane)
        value = simplified(attention.score([*outer[:-2], row(tuple(outer)), place], scores[at]), at, masked.shape)
        if columns % LANES == 0:
            return value
        return tirx.Select(place >= vector * LANES, value, tirx.const(float("-inf"), FLOAT))

    def largest_of(*at: Any) -> Any:
        found = joined_by_pairs(tirx.max, [lane_largest[(*at, lane)] for lane in range(LANES)])
        # With a finite maximum, scores of -inf have weights of zero instead of NaN.
        return tirx.max(found, tirx.min_value(FLOAT)) if attention.guarded else found

    def weight(*at: Any) -> Any:
        return tirx.exp(masked[at] - largest[at[:-2]])

    def product(*at: Any) -> Any:
        *outer, vector, lane, summed = at
        value = simplified(attention.value([*outer[:-2], summed, vector * lanes + lane]), at, [*sums.shape, columns])
        # After the whole vectors come those lanes of the last vector that are in no other one.
        place = summed + summed // whole * (LANES - columns % LANES) if columns % LANES else summed
        return weights[(*outer, place // LANES, place % LANES)] * value

    program.element_wise(keys, key)
    program.element_wise(queries, query)
    program.sum(scores, terms, score)
    program.element_wise(masked, mask)
    program.largest(lane_largest, vectors, lambda *at: masked[(*at[:-2], at[-1], at[-2])])
    program.element_wise(largest, largest_of)
    program.element_wise(weights, weight)
    program.sum(lane_totals, vectors, lambda *at: weights[(*at[:-2], at[-1], at[-2])])
    program.element_wise(
        totals, lambda *at: joined_by_pairs(added, [lane_totals[(*at, lane)] for lane in range(LANES)])
    )
    program.sum(sums, columns, product)
    variables = variables_of(len(sums.shape), attention.index)
    *outer, vector, lane = variables
    one, total = tirx.const(1.0, FLOAT), totals[tuple(outer)]
    if attention.guarded:  # with any score above -inf, the total is at least one
        total = tirx.Select(total == 0, one, total)
    value = sums[tuple(variables)] * (one / total)
    store = attention.store([*outer[:-2], row(tuple(outer)), vector * lanes + lane], value)
    program.add(nest("output", sums.shape, variables, store))
    function = PrimFunc(list(attention.main.params), program.body())
    # The layout of constants is not changed, because they are read along axes that are cut into parts.
    attributes = {key: value for key, value in attention.main.attrs.items() if key != "layout_free_buffers"}
    return tvm.IRModule({"main": function.with_attr(attributes)})


def added(one: Any, other: Any) -> Any:
    """Return the sum of two values."""
    return one + other


def joined_by_pairs(operator: Any, values: list[Any]) -> Any:
    """Return the values combined by a binary operator in a balanced tree, as a processor reduces vectors."""
    while len(values) > 1:
        values = [operator(one, other) for one, other in zip(values[::2], values[1::2], strict=True)]
    return values[0]
