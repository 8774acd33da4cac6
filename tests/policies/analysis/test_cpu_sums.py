"""What sums cost on a CPU, by hand: chains, rows of sums, partial sums (rfactor), and what is taken out of loops."""

from __future__ import annotations

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Access, Axis, Choice, Loop, Sketch, Statement, Tile
from policies.analysis.analyzer import analyse
from policies.analysis.cpu.fitted import FITTED
from policies.analysis.cpu.sums import SumLoops, cycles_of_sums, hoisted, sum_loops
from policies.analysis.nests import nest

LANES = 16


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def partial_sums(inside: bool) -> Statement:
    """128 rows of 768 values summed up in two steps, the first of which has as many partial sums as the second column
    says: with their loop inside of the reduction's, as it is by itself, or around it, as it is beside a consumer."""
    axes = (Axis("i", 128, False), Axis("k", 768, True), Axis("p", 768, False))
    loops = (Loop(1, 0), Loop(1, 1, partial=2)) if inside else (Loop(1, 1, partial=2), Loop(1, None, rest=True))
    accesses = (
        Access("S.rf", (128, 768), 4, ((1, 0, 0), (0, 0, 1))),
        Access("A", (128, 768), 4, ((1, 0, 0), (0, 1, 0))),
        Access("S.rf", (128, 768), 4, ((1, 0, 0), (0, 0, 1)), write=True),
    )
    return Statement("S_rf", axes, (Loop(0, None, 128), *loops), accesses, 1.0, parallel_limit=32)


def total(location: int = 0) -> Statement:
    """The second step: a sum of the partial sums of each row, inside of so many loops of the main statement."""
    axes = (Axis("p", 768, True), Axis("i", 128, False))
    accesses = (
        Access("S", (128,), 4, ((0, 1),)),
        Access("S.rf", (128, 768), 4, ((0, 1), (1, 0))),
        Access("S", (128,), 4, ((0, 1),), write=True),
    )
    loops = (Loop(0, None, 768), Loop(1, None, 128)) if location else (Loop(1, None, 128), Loop(0, 1))
    return Statement("S", axes, loops, accesses, 1.0, fixed_depth=location, parallel_limit=32)


def scale() -> Statement:
    """The main statement, which divides each value by its row's sum."""
    axes = (Axis("i", 128, False), Axis("j", 768, False))
    accesses = (
        Access("A", (128, 768), 4, ((1, 0), (0, 1))),
        Access("S", (128,), 4, ((1, 0),)),
        Access("D", (128, 768), 4, ((1, 0), (0, 1)), write=True),
    )
    return Statement("D", axes, (Loop(0, None, 128), Loop(1, None, 768)), accesses, 1.0, parallel_limit=32)


def normalised(inside: bool, location: int = 0) -> Sketch:
    return Sketch(0, "norm", "norm", (Tile(768, 2, 768),), (scale(), partial_sums(inside), total(location)))


def test_the_loops_of_partial_sums_reduce_nothing() -> None:
    matrix = np.array([[24, 32], [768, 1], [1, 768]])
    inner = sum_loops(nest(partial_sums(inside=True), matrix))
    assert inner is not None
    assert inner.row.tolist() == [32, 1, 768]
    assert inner.steps.tolist() == [1, 768, 1], "with one partial sum the reduction is innermost"
    around = sum_loops(nest(partial_sums(inside=False), matrix))
    assert around is not None
    assert around.row.tolist() == [32, 1, 768]
    assert around.steps.tolist() == [24, 768, 1]
    assert around.reduced.tolist() == [24, 768, 1]
    assert sum_loops(nest(scale(), matrix)) is None


def test_cycles_of_a_point_by_hand() -> None:
    # A row of 32 in two vectors: each step waits for the last one, 4 cycles for 32 points, as do 96 steps of 2 vectors.
    row = SumLoops(array(32, 32), array(1, 1), array(768, 96))
    assert cycles_of_sums(row, array(0, 0), LANES, FITTED) == pytest.approx([4 / 32, 4 / 32])
    # 16 steps: four rows run beside each other, and the loads decide, one cycle for each of the two vectors.
    assert cycles_of_sums(SumLoops(array(32), array(1), array(16)), array(0), LANES, FITTED) == pytest.approx([2 / 32])
    # A chain of additions of 4 cycles; of 64 steps two run beside each other.
    chain = SumLoops(array(1, 1), array(768, 64), array(768, 64))
    assert cycles_of_sums(chain, array(512, 512), LANES, FITTED) == pytest.approx([4, 2])
    # The reduction inside of a row: a chain, until the schedule or the compiler unrolls it; two sums are no vector.
    rows = SumLoops(array(32, 32, 32, 2), array(96, 96, 32, 16), array(96, 96, 32, 16))
    assert cycles_of_sums(rows, array(64, 512, 0, 512), LANES, FITTED) == pytest.approx([3, 4 / 32, 2 / 32, 1])


def test_a_sum_that_a_loop_repeats_is_worked_out_once_where_it_is_unrolled() -> None:
    axes = (Axis("p", 768, True), Axis("i", 128, False), Axis("j", 768, False))
    accesses = (
        Access("S.rf", (128, 768), 4, ((0, 1, 0), (1, 0, 0))),
        Access("S", (128,), 4, ((0, 1, 0),), write=True),
    )
    repeated = Statement("S", axes, (Loop(1, None, 128), Loop(2, None, 768), Loop(0, 1)), accesses, 1.0)
    loops = nest(repeated, np.array([[16, 48], [12, 64], [12, 64]]))
    assert hoisted(loops, array(16, 16, 64), FITTED).tolist() == [768, 1, 768]


def test_partial_sums_are_as_many_as_the_loops_cover(cpu: DeviceAbstraction) -> None:
    """The axis of partial sums has 768 at most; to multiply by it would be 768 times too slow for one of them."""
    terms = analyse(normalised(inside=True), np.array([[24, 32], [768, 1]]), cpu).terms
    assert terms["S_rf.points"].tolist() == [128 * 768] * 2
    assert terms["S.points"].tolist() == [128 * 32, 128]
    per_second = 2 * 4e9  # of two cores
    rows, chain = terms["S_rf.secs"] - 3e-6
    assert chain == pytest.approx(128 * 768 * 4 / per_second, rel=1e-5)
    # Rows of two vectors take 2 cycles for each of 24 steps, less than to read the values and all partial sums twice.
    assert rows == pytest.approx(4 * 128 * (768 + 32 + 32) / 16 / per_second, rel=1e-4)


def test_a_sum_inside_of_the_main_nest_takes_in_all_partial_sums_of_its_row(cpu: DeviceAbstraction) -> None:
    terms = analyse(normalised(inside=True, location=1), np.array([[24, 32], [768, 1]]), cpu).terms
    assert terms["S.points"].tolist() == [128 * 32, 128]


def test_sums_stay_in_registers_in_what_the_schedule_unrolls(cpu: DeviceAbstraction) -> None:
    """Eight sums over five by five steps, with the steps of one direction around the sums: unrolled as a whole, each
    sum is written once for all 25 steps, else once for the five inside."""
    axes = (Axis("c", 16, False), Axis("x", 64, False), Axis("r", 5, True), Axis("s", 5, True))
    loops = (
        Loop(1, 0, kind="parallel"), Loop(2, None, 5), Loop(1, 1), Loop(3, None, 5), Loop(0, None, 16, "vectorize"),
    )  # fmt: skip
    accesses = (
        Access("C", (64, 16), 4, ((0, 1, 0, 0), (1, 0, 0, 0))),
        Access("A", (5, 68, 16), 4, ((0, 0, 1, 0), (0, 1, 0, 1), (1, 0, 0, 0))),
        Access("W", (5, 5, 16), 4, ((0, 0, 1, 0), (0, 0, 0, 1), (1, 0, 0, 0))),
        Access("C", (64, 16), 4, ((0, 1, 0, 0), (1, 0, 0, 0)), write=True),
    )
    statement = Statement("depthwise", axes, loops, accesses, 2.0, unroll_column=2)
    sketch = Sketch(0, "d", "d", (Tile(64, 2, 64), Choice("unroll_explicit", (0, 512))), (statement,))
    terms = analyse(sketch, np.array([[8, 8, 0], [8, 8, 1]]), cpu).terms
    assert terms["stores"].tolist() == pytest.approx([1 / 5, 1 / 25])
    assert terms["accumulators"].tolist() == [1, 8]
    # 5 rows of 12 inputs and 25 weights for 200 operations, and each sum read once.
    assert terms["loads"][1] == pytest.approx((5 * 12 + 25) / 200 + 1 / 25)
    assert terms["cycles"][1] < terms["cycles"][0]
