"""What a row-wise kernel costs on a CPU, by hand: vectors of any length, reductions, loops taken apart, threads."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Choice, RowStep, RowWise, Sketch, Tile
from policies.analysis.analyzer import analyse, feasible, model, score
from policies.analysis.cpu.fitted import FITTED
from policies.analysis.cpu.model import CORE
from policies.analysis.cpu.row_wise import flop, lanes_of, unrolled
from policies.features.invariant import NAMES
from policies.features.table import PREDICTED, feature_names, symbolic_features
from policies.features.views import INVARIANT, LOOP_TREE, describe

ROWS = 8
# A vector operation of 16 lanes takes half a cycle of the usual clock.
CPU = DeviceAbstraction("cpu", 1, 16, 32, 32768, 1 << 20, 1 << 25, FITTED.rows.clock_hertz * 16 * 4, 2e10)
VALUES = (1, 4, 6, 8)  # times 4 lanes


def kernel(elements: int = 96) -> Sketch:
    """Sums of rows, and four operations on each element and two vectors beside it."""
    total = RowStep("sum", elements, few=4, column=0, operations=1, divisions=0, calls=0, reads=1, writes=0)
    scaled = RowStep("scaled", elements, few=0, column=4, operations=4, divisions=0, calls=0, reads=3, writes=1)
    decisions = (Choice("value", VALUES), Tile(ROWS, 2, 8), Tile(elements, 2, 64))
    moved = 8 * elements
    return Sketch(0, "row-wise", "rows", decisions, (), row_wise=RowWise(ROWS, 2, (total, scaled), moved + 4, moved))


def matrix(*rows: tuple[int, int, int], elements: int = 96) -> NDArray[np.int64]:
    """Of (lanes of the sums, rows together, lanes of the other step)."""
    return np.array([[VALUES.index(n // 4), ROWS // r, r, elements // e, e] for n, r, e in rows])


def cycles(step: str, *rows: tuple[int, int, int], elements: int = 96) -> list[float]:
    """Of a step, for as many rows as go together."""
    analysed = analyse(kernel(elements), matrix(*rows, elements=elements), CPU)
    together = np.array([r for _, r, _ in rows])
    counted: list[float] = (analysed.terms[f"{step}.secs"] * FITTED.rows.clock_hertz * together / ROWS).tolist()
    return counted


def test_vectors_are_widened_to_powers_of_two_and_moved_in_parts() -> None:
    found = lanes_of(np.array([1.0, 4.0, 12.0, 16.0, 24.0, 48.0, 60.0, 64.0]), 16)
    assert found.registers.tolist() == [1 / 16, 1 / 4, 1, 1, 2, 4, 4, 4]
    assert found.parts.tolist() == [1, 1, 2, 1, 2, 3, 5, 4]
    assert found.odd.tolist() == [False, False, True, False, True, True, True, False]


def test_an_element_wise_step() -> None:
    # Of 16 lanes: four operations in 2 cycles, three loads and a store in 2.5, six times. Of 12: two parts, 5 cycles,
    # and 1 to join them. Of 2: a vector takes as long as one of 16. Of one: vectorised by the compiler.
    found = cycles("scaled", (16, 1, 16), (16, 1, 12), (16, 1, 2), (16, 1, 1))
    assert found == pytest.approx([6 * 2.55 + 0.75, 8 * 6.05 + 0.75, 48 * 2.55 + 0.75, 6 * 2.55 + 0.75])
    # What the compiler leaves over: 4 of 100 elements, four operations each.
    assert cycles("scaled", (4, 1, 1), elements=100) == pytest.approx([6 * 2.55 + 4 * 4 / 2 + 0.75])
    # As many times as rows go together.
    assert cycles("scaled", (16, 8, 16)) == pytest.approx([8 * (6 * 2.55 + 0.75)])


def test_a_reduction() -> None:
    # Six additions that wait for each other, then those of 4 vectors of 4 lanes, then of 4 numbers.
    one = 6 * (2.2 + 0.05) + 0.75 + 4 * 1.4 + 0.75 + 4 * 1.4
    # Of eight rows, which hide that: half a cycle each, then one, then a fifth for each number.
    eight = 6 * (8 * 0.5 + 0.05) + 0.75 + 4 * 8 + 0.75 + 4 * 8 * 0.2
    assert cycles("sum", (16, 1, 16), (16, 8, 16)) == pytest.approx([one, eight])


def test_sums_of_odd_lanes_are_taken_apart_in_loops_that_are_not_unrolled() -> None:
    # 40 steps of 24 lanes in two parts: 32 operations a step, two steps at once; 8 x 24 numbers in and out 20 times.
    taken_apart = 0.65 * 8 * 24 * 20
    odd = 40 * (8 * 1.25 + 0.05) + 0.75 + taken_apart + 6 * 8 + 0.75 + 6.4
    even = 30 * (8 * 1 + 0.05) + 0.75 + 8 * 8 + 0.75 + 6.4
    assert cycles("sum", (24, 8, 16), (32, 8, 16), elements=960) == pytest.approx([odd, even])
    # Four steps of 32 operations are unrolled as a whole.
    assert cycles("sum", (24, 8, 16)) == pytest.approx([4 * (8 * 1.25 + 0.05) + 0.75 + 6 * 8 + 0.75 + 6.4])


def test_a_loop_is_unrolled_by_a_divisor_of_its_steps() -> None:
    steps, bodies = np.array([40.0, 40.0, 35.0, 31.0, 6.0]), np.array([32.0, 10.0, 10.0, 2.0, 80.0])
    assert unrolled(steps, bodies, FITTED).tolist() == [2, 5, 7, 31, 1]


def test_a_processor_of_half_registers_computes_slower_and_waits_as_long() -> None:
    slow = dataclasses.replace(CPU, peak_flops=CPU.peak_flops / 2)
    found = analyse(kernel(), matrix((16, 1, 16)), slow).terms
    assert found["sum.secs"] * FITTED.rows.clock_hertz / ROWS == pytest.approx(cycles("sum", (16, 1, 16)))
    assert found["scaled.secs"] * FITTED.rows.clock_hertz / ROWS == pytest.approx([6 * 5.05 + 0.75])


def test_threads_and_caches() -> None:
    rows = matrix((16, 8, 16), (16, 4, 16), (16, 2, 16))
    alone = analyse(kernel(), rows, CPU)
    two = analyse(kernel(), rows, dataclasses.replace(CPU, cores=2, peak_flops=2 * CPU.peak_flops))
    assert alone.terms["memory_secs"].tolist() == [0, 0, 0], "all of it stays in the L1 cache"
    # Eight rows at once leave a thread idle; the others share them.
    starts = np.array([0.0, 0.25e-6, 0.25e-6])
    assert two.latency_secs - starts == pytest.approx(alone.latency_secs / [1, 2, 2])
    moved = ROWS * 8 * 96

    def memory_secs(l1: int, l2: int, l3: int) -> float:
        small = dataclasses.replace(CPU, l1_bytes=l1, l2_bytes=l2, l3_bytes=l3)
        return float(analyse(kernel(), rows, small).terms["memory_secs"][0])

    assert memory_secs(1000, 1 << 20, 1 << 25) == pytest.approx(moved / (FITTED.rows.clock_hertz * 43))
    assert memory_secs(1000, 2000, 1 << 25) == pytest.approx(moved / (2.4 * CPU.bandwidth_bytes))
    assert memory_secs(1000, 2000, 4000) == pytest.approx(moved / CPU.bandwidth_bytes)


def test_functions_and_divisions_are_worth_many_additions() -> None:
    step = RowStep("exp", 64, few=0, column=None, operations=1, divisions=2, calls=3, reads=1, writes=1)
    assert flop(RowWise(10, 1, (step,), 0, 0), FITTED) == 10 * 64 * (1 + 2 * 8 + 3 * 16)


def test_it_is_described_wherever_the_analyzer_is_asked(gpu: DeviceAbstraction) -> None:
    sketch, rows = kernel(), matrix((16, 8, 16), (24, 1, 12))
    assert sketch.described
    latency, good = score(sketch, rows, CPU)
    assert latency.dtype == np.float32
    assert good.all()
    assert feasible(sketch, rows, CPU).all()
    assert set(model(sketch, rows, CPU).core()) == set(CORE)

    names, features = feature_names(sketch, CPU), symbolic_features(sketch, rows, CPU)
    assert features.shape == (2, len(names))
    assert features[:, names.index(PREDICTED)] == pytest.approx(np.log(latency))
    assert {"sum.lanes", "scaled.parts"} < set(names)

    views = describe(sketch, rows, CPU, (INVARIANT, LOOP_TREE))
    assert views[INVARIANT][:, 0] == pytest.approx(np.log(latency))
    assert (views[INVARIANT][:, 1] == 1).all()
    share = ROWS * 96 * 5 / CPU.peak_flops / latency
    assert views[INVARIANT][:, 2] == pytest.approx(np.log(share), abs=1e-5)
    assert (views[INVARIANT][:, NAMES.index("cpu.inlined")] == -40).all()
    assert not views[LOOP_TREE].any()
    with pytest.raises(ValueError, match="not described"):
        score(sketch, rows, gpu)
