"""Quantities of a nest against values counted by hand and by brute force."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_tune.base.sketch import Access, Axis, Location, Loop, Sketch, Statement, Tile
from policies.analysis.quantities import (
    contiguous_run,
    enclosing_depth,
    fitting_depth,
    footprint,
    loop_extents,
    moved_elements,
    nest,
    parallel_extent,
    unit_stride,
    vector_extent,
    working_set,
)
from policies.space.sampling import sample
from tests.helpers.properties import examples


def convolution(height: int, kernel: int, stride: int, channels: int) -> tuple[Statement, Sketch]:
    """One-dimensional: out[h, k] += in[stride h + r, c] * w[r, c, k]; h and k in three parts, c in two."""
    out = channels
    rows = stride * (height - 1) + kernel
    axes = (Axis("h", height, False), Axis("k", out, False), Axis("r", kernel, True), Axis("c", channels, True))
    accesses = (
        Access("in", (1, rows, channels), 4, ((0, 0, 0, 0), (stride, 0, 1, 0), (0, 0, 0, 1))),
        Access("w", (kernel, channels, out), 4, ((0, 0, 1, 0), (0, 0, 0, 1), (0, 1, 0, 0))),
        Access("out", (1, height, out), 4, ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0)), write=True),
    )
    loops = (
        Loop(0, 0), Loop(1, 3), Loop(0, 1), Loop(1, 4), Loop(3, 6), Loop(2, None, kernel), Loop(3, 7),
        Loop(0, 2), Loop(1, 5),
    )  # fmt: skip
    statement = Statement("conv", axes, loops, accesses, 2.0, parallel_limit=8, vectorize_limit=64)
    sketch = Sketch(0, "r", "t", (Tile(height, 3, 64), Tile(out, 3, 64), Tile(channels, 2, 64)), (statement,))
    return statement, sketch


def touched_by_brute_force(statement: Statement, access: Access, extents: list[int], depth: int) -> int:
    """Walk the sub-nest inside ``depth`` with the outer loops at 0 and count distinct elements."""
    strides = []
    for at, loop in enumerate(statement.loops):
        later = [extents[k] for k in range(at + 1, len(extents)) if statement.loops[k].axis == loop.axis]
        strides.append(int(np.prod(later)) if later else 1)
    ranges = [range(extent if at >= depth else 1) for at, extent in enumerate(extents)]
    seen = set()
    for point in itertools.product(*ranges):
        axis = [0] * len(statement.axes)
        for at, value in enumerate(point):
            axis[statement.loops[at].axis] += value * strides[at]
        seen.add(tuple(sum(c * v for c, v in zip(row, axis, strict=True)) for row in access.index))
    return len(seen)


@given(st.integers(0, 1000), st.sampled_from([(4, 3, 1), (6, 1, 2), (4, 3, 2), (4, 2, 3)]))
@examples(25)
def test_footprint_equals_counting(seed: int, shape: tuple[int, int, int]) -> None:
    height, kernel, stride = shape
    statement, sketch = convolution(height, kernel, stride, 4)
    rows = sample(sketch, 1, np.random.default_rng(seed))
    loops = nest(statement, rows)
    extents = [int(x) for x in loop_extents(statement, rows)[:, 0]]
    for access in statement.accesses:
        touched = footprint(loops, access)[:, 0]
        for compact, at in enumerate((*loops.loop_numbers, len(statement.loops))):
            counted = touched_by_brute_force(statement, access, extents, at)
            # The range counts the gaps that a stride leaves between windows; it is never below the truth.
            assert touched[compact] >= counted
            if stride == 1 or kernel == 1:
                assert touched[compact] == counted


def test_unit_loops_are_left_out() -> None:
    statement, sketch = convolution(4, 1, 1, 4)
    loops = nest(statement, sample(sketch, 5, np.random.default_rng(0)))
    assert loops.depth == 8
    assert loops.compact_depth(5) == 5
    assert loops.compact_depth(6) == 5
    assert (loops.points() == 4 * 4 * 4).all()
    assert loops.step_depth == 6


def test_matmul_traffic_by_hand(tiled: Sketch) -> None:
    # i = 4 * 1 * 8 * 8, j = 4 * 1 * 4 * 16, k = 32 * 8, unroll 0.
    rows = np.array([[4, 1, 8, 8, 4, 1, 4, 16, 32, 8, 0]])
    statement = tiled.statements[0]
    loops = nest(statement, rows)
    touched = [footprint(loops, access) for access in statement.accesses]
    # Inside the outer k loop (depth 5): i 64, j 64, k 8.
    assert [float(t[5, 0]) for t in touched] == [64 * 8, 8 * 64, 64 * 64]
    resident = working_set(loops, touched)
    assert resident[5, 0] == 4 * (512 + 512 + 4096)
    # 21 KiB hold depth 5 (20,480 bytes) and not depth 4 (k 256: 147,456 bytes).
    fits = fitting_depth(resident, 21 * 1024)
    assert fits.tolist() == [5]
    # A and B move with every k step: their footprint once for each of 4 * 4 * 32 outer iterations.
    assert moved_elements(loops, touched[0], fits).tolist() == [512 * 4 * 4 * 32]
    # C is reused over the k loop right outside: once for each of the 4 * 4 outer tiles.
    assert moved_elements(loops, touched[2], fits).tolist() == [4096 * 16]
    # Everything fits at depth 0: each element comes in once.
    whole = fitting_depth(resident, 1e9)
    assert [float(moved_elements(loops, t, whole)[0]) for t in touched] == [65536.0] * 3


def test_vector_and_parallel_extents(tiled: Sketch, blocked: Sketch) -> None:
    rows = np.array([[4, 1, 8, 8, 4, 1, 4, 16, 32, 8, 0], [64, 1, 1, 4, 1, 1, 8, 32, 256, 1, 0]])
    loops = nest(tiled.statements[0], rows)
    assert vector_extent(loops).tolist() == [16.0, 32.0]
    free = np.array([10, 10])
    # First: 4, 16, 16 * 1, ... fused until 32 is exceeded, and never a reduction loop. Second: 64 exceeds at once.
    assert parallel_extent(loops, free).tolist() == [16.0, 64.0]
    assert parallel_extent(loops, np.array([1, 0])).tolist() == [4.0, 1.0]
    blocked_rows = np.array([[16, 4, 4, 4, 1, 64, 32, 8]])
    explicit = nest(blocked.statements[0], blocked_rows)
    assert parallel_extent(explicit, np.array([0])).tolist() == [16.0]
    assert vector_extent(explicit).tolist() == [64.0]


def test_contiguous_run_and_stride(tiled: Sketch, blocked: Sketch) -> None:
    rows = np.array([[4, 1, 8, 8, 4, 1, 4, 16, 32, 8, 0]])
    statement = tiled.statements[0]
    loops = nest(statement, rows)
    a, b, c = statement.accesses
    assert contiguous_run(loops, a, 5).tolist() == [8.0]  # k
    assert contiguous_run(loops, b, 5).tolist() == [64.0]  # j
    assert contiguous_run(loops, b, 0).tolist() == [256.0 * 256.0]  # whole rows follow one another
    assert unit_stride(statement, b, 1) is True
    assert unit_stride(statement, b, 2) is False
    assert unit_stride(statement, a, 1) is None
    assert unit_stride(statement, c, 0) is False
    packed = blocked.statements[0]
    packed_loops = nest(packed, np.array([[16, 4, 4, 4, 1, 64, 32, 8]]))
    assert contiguous_run(packed_loops, packed.accesses[1], packed_loops.step_depth).tolist() == [64.0]
    assert unit_stride(packed, packed.accesses[1], 2) is True


def test_enclosing_depth() -> None:
    main, _ = convolution(4, 1, 1, 4)
    pad = Statement("pad", main.axes[:1], (Loop(0, None, 4),), (), 0.0, location_column=8)
    decisions = (Tile(4, 3, 4), Tile(4, 3, 4), Tile(4, 2, 4), Location("pad", (-2, -1, 0, 3, 6)))
    sketch = Sketch(0, "r", "t", decisions, (main, pad))
    rows = np.array([[4, 1, 1, 4, 1, 1, 4, 1, at] for at in range(5)])
    depth = enclosing_depth(sketch, nest(main, rows), pad, rows)
    # Location 6 is the seventh loop; the sixth has one iteration and is not kept.
    assert depth.tolist() == [-2, 0, 1, 4, 6]
    fixed = Statement("relu", main.axes[:1], (Loop(0, None, 4),), (), 1.0, fixed_depth=4)
    assert enclosing_depth(sketch, nest(main, rows), fixed, rows).tolist() == [4] * 5
    wrong = Statement("pad", main.axes[:1], (Loop(0, None, 4),), (), 0.0, location_column=0)
    with pytest.raises(ValueError, match="not a location"):
        enclosing_depth(sketch, nest(main, rows), wrong, rows)


def test_loops_of_a_rest_and_of_a_chosen_value() -> None:
    # 100 rows by threads of 8 or 32 (chosen), the rest rounded up; a grid-stride loop stands inside.
    axes = (Axis("i", 100, False),)
    loops = (Loop(0, 0, values=(8, 32), kind="threadIdx.x"), Loop(0, None, rest=True))
    access = Access("A", (100,), 4, ((1,),))
    statement = Statement("copy", axes, loops, (access,), 1.0)
    rows = np.array([[0], [1]])
    assert loop_extents(statement, rows).tolist() == [[8, 32], [13, 4]]
    found = nest(statement, rows)
    assert found.extents.tolist() == [[8, 32], [13, 4]]
    # 104 and 128 iterations, of which the surplus does nothing: 100 elements.
    assert footprint(found, access)[0].tolist() == [100, 100]


def test_digits_of_a_fused_axis() -> None:
    # i runs over 6 x 8 and A is read as A[i // 8, i % 8]; split into 4 x 12.
    axes = (Axis("i", 48, False, digits=(6, 8)),)
    access = Access("A", (6, 8), 4, ((1, 0), (0, 1)))
    turned = Access("T", (8, 6), 4, ((0, 1), (1, 0)))
    statement = Statement("copy", axes, (Loop(0, 0), Loop(0, 1)), (access, turned), 1.0)
    found = nest(statement, np.array([[4, 12], [12, 4], [6, 8]]))
    # 12 in a row touch two rows of eight, one of them in part, 4 in a row four of one row, 8 a row.
    assert footprint(found, access).tolist() == [[48, 48, 48], [12, 4, 8], [1, 1, 1]]
    assert contiguous_run(found, access, 1).tolist() == [12, 4, 8]
    assert contiguous_run(found, turned, 1).tolist() == [2, 1, 1]
    assert unit_stride(statement, access, 0) is True
    assert unit_stride(statement, turned, 0) is False


def test_a_loop_over_partial_results_reduces_nothing() -> None:
    # rfactor: sum over k in 64 = 4 x 16 into 4 partial sums.
    axes = (Axis("k", 64, True), Axis("p", 64, False))
    access = Access("A", (64,), 4, ((1, 0),))
    sums = Access("P", (64,), 4, ((0, 1),), write=True)
    statement = Statement("sum", axes, (Loop(0, 0, partial=1), Loop(0, 1)), (access, sums), 1.0)
    found = nest(statement, np.array([[4, 16]]))
    assert found.reduction == (False, True)
    assert found.spatial_points(0).tolist() == [4]
    assert footprint(found, sums)[:, 0].tolist() == [4, 1, 1]
    assert footprint(found, access)[:, 0].tolist() == [64, 16, 1]


def test_leading_loops_are_fused_up_to_the_next_statement(tiled: Sketch) -> None:
    rows = np.array([[4, 1, 8, 8, 4, 1, 4, 16, 32, 8, 0]])
    bounded = dataclasses.replace(tiled.statements[0], fusible=1)
    assert parallel_extent(nest(bounded, rows)).tolist() == [4]


def test_windows_with_gaps_are_not_contiguous() -> None:
    # in[2 h + r] with h in 2 x 2 and r in 1 x 3 or 3 x 1: three of r bridge the stride, one does not.
    axes = (Axis("h", 4, False), Axis("r", 3, True))
    access = Access("in", (9,), 4, ((2, 1),))
    statement = Statement("window", axes, (Loop(0, 0), Loop(1, 2), Loop(0, 1), Loop(1, 3)), (access,), 1.0)
    loops = nest(statement, np.array([[2, 2, 1, 3], [2, 2, 3, 1]]))
    assert contiguous_run(loops, access, 0).tolist() == [9, 9]
    assert contiguous_run(loops, access, 2).tolist() == [5, 1]


def test_a_copy_in_order_is_fused_and_cut_into_vectors() -> None:
    axes = (Axis("i", 3, False), Axis("j", 100, False))
    loops = (Loop(0, None, 3), Loop(1, None, 100))
    row, whole = Access("b", (100,), 4, ((0, 1),)), Access("c", (3, 100), 4, ((1, 0), (0, 1)), write=True)
    copy = Statement("copy", axes, loops, (row, whole), 1.0, parallel_limit=8, vectorize_limit=64)
    found = nest(copy, np.empty((1, 0), dtype=np.int64))
    assert vector_extent(found).tolist() == [64]
    assert parallel_extent(found).tolist() == [5]
    turned = Access("d", (100, 3), 4, ((0, 1), (1, 0)))
    found = nest(replace(copy, accesses=(turned, whole)), np.empty((1, 0), dtype=np.int64))
    assert vector_extent(found).tolist() == [1]
    assert parallel_extent(found).tolist() == [300]
    # A short innermost loop is vectorised, and is then not parallel.
    short = replace(copy, axes=(axes[0], Axis("j", 50, False)), loops=(loops[0], Loop(1, None, 50)))
    found = nest(replace(short, accesses=(turned, whole)), np.empty((1, 0), dtype=np.int64))
    assert vector_extent(found).tolist() == [50]
    assert parallel_extent(found).tolist() == [3]
