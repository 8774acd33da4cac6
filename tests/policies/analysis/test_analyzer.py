"""Pruner's symbols and penalties against hand-worked constants; the analyzer's judgement of known schedules."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Access, Axis, Location, Loop, Sketch, Statement, Tile
from policies.analysis.analyzer import CHUNK, analyse, feasible, latency_secs, model, score
from policies.analysis.cpu.fitted import FITTED
from policies.analysis.symbols import (
    DeviceLimits,
    Symbols,
    limits,
    penalties,
    registers_at_hand,
    statement_secs,
    utilisation,
)
from policies.features.invariant import NAMES, invariant_features
from policies.space.sampling import sample


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_utilisation_is_the_papers_example() -> None:
    # "A schedule with six scheduling blocks and hardware with four parallel units": 0.75.
    assert utilisation(array(6, 4, 1, 9), 4).tolist() == [0.75, 1.0, 0.25, 0.75]


def test_penalties_and_the_two_terms_of_equation_1_by_hand() -> None:
    limit = DeviceLimits(m_l0=64, m_l1=1000, n_l1=32, pu_l1=4, pu_l2=80, n_l2=32, peak_flops=1e12, bandwidth_bytes=1e11)
    symbols = Symbols(
        s1=array(128), s2=array(256), s3=array(4000), s4=array(100), s5=array(3e6), s6=array(120), s7=array(48),
        s8=array(6e9), s9=array(0),
    )  # fmt: skip
    terms = penalties(symbols, limit)
    assert terms.l0_m == pytest.approx(0.5)  # 64 / 128
    assert terms.l0_c == pytest.approx(3.0)  # 1 + 256 / 128
    assert terms.l1_m == pytest.approx(0.25)  # 1000 / 4000
    assert terms.l1_c == pytest.approx(1.0)  # ceil(100 / 32) = 4 warps on 4 schedulers
    assert terms.alpha_l1 == pytest.approx(100 / 128)
    assert terms.l2_c == pytest.approx(0.75)  # 120 / (2 * 80)
    assert terms.l2_m == pytest.approx(0.75)  # 48 / (2 * 32)
    compute, memory = statement_secs(symbols, terms, limit)
    assert compute == pytest.approx(6e9 / (1e12 * 3.0 * 1.0 * (100 / 128) * 0.75))
    assert memory == pytest.approx(3e6 / (1e11 * 0.5 * 0.25 * 0.75))


def test_tensor_cores_have_a_penalty_and_a_peak_of_their_own() -> None:
    symbols = Symbols(
        s1=array(32, 32, 32), s2=array(32, 32, 32), s3=array(0, 0, 0), s4=array(128, 128, 128), s5=array(0, 0, 0),
        s6=array(80, 80, 80), s7=array(32, 32, 32), s8=array(8e9, 8e9, 8e9), s9=array(0, 8, 12),
    )  # fmt: skip
    limit = DeviceLimits(
        m_l0=255, m_l1=1000, n_l1=32, pu_l1=4, pu_l2=80, n_l2=32, peak_flops=1e12, bandwidth_bytes=1e11,
        pu_tensor=8, tensor_flops=8e12,
    )  # fmt: skip
    terms = penalties(symbols, limit)
    assert terms.l0_t.tolist() == [1.0, 1.0, 0.75]  # without; 8 products on 8 tensor cores; 12 / (2 * 8)
    compute, _ = statement_secs(symbols, terms, limit)
    assert compute.tolist() == pytest.approx([8e9 / 2e12, 8e9 / 16e12, 8e9 / 12e12])  # each doubled by 1 + S2 / S1
    unknown = dataclasses.replace(limit, tensor_flops=0.0)
    assert statement_secs(symbols, terms, unknown)[0].tolist() == pytest.approx([8e9 / 2e12, 8e9 / 2e12, 8e9 / 1.5e12])


def test_registers_of_a_cuda_thread_follow_from_how_many_there_are(gpu: DeviceAbstraction) -> None:
    none = array(0, 0, 0, 0)
    symbols = Symbols(array(255, 300, 160, 160), none, none, array(64, 256, 512, 1024), none, none, none, none, none)
    # 65,536 registers for 64, 256, 512 and 1,024 threads, at most 255 for each: 255, 255, 128 and 64.
    assert registers_at_hand(symbols, limits(gpu)).tolist() == [255, 255, 128, 64]
    assert penalties(dataclasses.replace(symbols, s6=array(1, 1, 1, 1), s7=array(1, 1, 1, 1)), limits(gpu)).l0_m == (
        pytest.approx([1.0, 0.85, 0.8, 0.4])
    )


def test_limits_of_devices(cpu: DeviceAbstraction, gpu: DeviceAbstraction) -> None:
    assert (limits(cpu).m_l0, limits(cpu).n_l1, limits(cpu).n_l2, limits(cpu).pu_l2) == (32, 16, 16, 2)
    assert (limits(gpu).m_l0, limits(gpu).n_l1, limits(gpu).n_l2, limits(gpu).pu_l1) == (255, 32, 32, 4)


def in_bytes(sketch: Sketch) -> Sketch:
    main, *others = sketch.statements
    return dataclasses.replace(sketch, statements=(dataclasses.replace(main, arithmetic="int8"), *others))


def test_products_of_bytes_take_the_time_that_was_probed_for_them(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    matrix = np.array([blocked_row((64, 1, 4), (4, 4, 16), (64, 4))])
    probed = dataclasses.replace(cpu, int8_flops=cpu.peak_flops / 4)
    floats, unknown = (model(each, matrix, cpu).core() for each in (blocked, in_bytes(blocked)))
    whole = model(in_bytes(blocked), matrix, probed).core()
    assert unknown["compute_secs"] == floats["compute_secs"]
    assert 3 < whole["compute_secs"] / floats["compute_secs"] < 4.1
    assert whole["l1_secs"] == floats["l1_secs"]
    assert model(blocked, matrix, probed).core()["compute_secs"] == floats["compute_secs"]


def test_limits_have_the_peak_of_the_operations(cpu: DeviceAbstraction, gpu: DeviceAbstraction) -> None:
    for device in (cpu, gpu):
        probed = dataclasses.replace(device, int8_flops=5e12)
        assert (limits(probed).peak_flops, limits(probed, "int8").peak_flops) == (device.peak_flops, 5e12)
        assert limits(device, "int8").peak_flops == device.peak_flops
        assert limits(dataclasses.replace(device, bfloat16_flops=6e12), "bfloat16").peak_flops == 6e12


def test_features_tell_products_of_bytes_from_floats(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    matrix = np.array([blocked_row((64, 1, 4), (4, 4, 16), (64, 4))])
    probed = dataclasses.replace(cpu, int8_flops=cpu.peak_flops / 4)
    floats, whole = (invariant_features(each, matrix, probed)[0] for each in (blocked, in_bytes(blocked)))
    differing = {name for name, one, other in zip(NAMES, floats, whole, strict=True) if one != other}
    assert {"device.peak_flops", "cpu.cycles"} <= differing


def blocked_row(i: tuple[int, int, int], j: tuple[int, int, int], k: tuple[int, int]) -> list[int]:
    return [*i, *j, *k]


def test_register_blocking_by_hand(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    # 8 rows of 2 vectors: 16 accumulators; a step loads 2 vectors and 8 broadcasts for 16 operations.
    known = analyse(blocked, np.array([blocked_row((32, 1, 8), (8, 1, 32), (4, 64))]), cpu)
    assert known.terms["accumulators"] == 16
    assert known.terms["step_operations"] == 16
    assert known.terms["parallel"] == 32
    assert known.terms["loads"] == pytest.approx((2 + 8) / 16 + 1 / 256)
    assert known.symbols[0].s1 == 16 + 2 + 1
    assert known.symbols[0].s8 == 2 * 256**3
    assert 2 * 256**3 / known.latency_secs[0] > 0.6 * cpu.peak_flops


def test_what_is_faster(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    rows = np.array(
        [
            blocked_row((32, 1, 8), (8, 1, 32), (4, 64)),  # 16 accumulators
            blocked_row((256, 1, 1), (16, 1, 16), (4, 64)),  # 1: every operation waits for the one before
            blocked_row((16, 1, 16), (4, 1, 64), (4, 64)),  # 64: twice the registers
            blocked_row((32, 1, 8), (256, 1, 1), (4, 64)),  # not vectorised
            blocked_row((1, 32, 8), (8, 1, 32), (4, 64)),  # one core idle
        ]
    )
    secs = latency_secs(blocked, rows, cpu)
    assert (secs[1:] > 1.5 * secs[0]).all()
    assert secs[3] > 10 * secs[0]
    assert secs[4] == pytest.approx(2 * secs[0], rel=0.2)
    assert feasible(blocked, rows, cpu).tolist() == [True, True, False, True, True]


def test_small_tile_held_in_registers_beats_one_in_memory(tiled: Sketch, cpu: DeviceAbstraction) -> None:
    unrolled = [32, 1, 1, 8, 8, 1, 1, 32, 4, 64, 1]
    secs = latency_secs(tiled, np.array([unrolled, [*unrolled[:-1], 0]]), cpu)
    assert secs[1] > 1.5 * secs[0]
    # Unrolling the reduction too (512 operations) is worse again: too much straight-line code.
    assert latency_secs(tiled, np.array([[*unrolled[:-1], 3]]), cpu)[0] > 1.3 * secs[0]


def _elementwise_or_sum(columns: int, reduction: bool) -> Sketch:
    """A product of 240 columns beside a statement of 64 rows that copies or sums 1,024 columns."""
    loops = (Loop(0, None, 64, "parallel"), Loop(2, None, 64), Loop(1, 0), Loop(1, 1, kind="vectorize"))
    accesses = (
        Access("A", (64, 64), 4, ((1, 0, 0), (0, 0, 1))),
        Access("B", (64, columns), 4, ((0, 0, 1), (0, 1, 0))),
        Access("C", (64, columns), 4, ((1, 0, 0), (0, 1, 0)), write=True),
    )
    product = (Axis("i", 64, False), Axis("j", columns, False), Axis("k", 64, True))
    main = Statement("matmul", product, loops, accesses, 2.0)
    axes = (Axis("i", 64, False), Axis("k", 1024, reduction))
    written = ((1, 0),) if reduction else ((1, 0), (0, 1))
    shape = (64,) if reduction else (64, 1024)
    other = Statement(
        "other",
        axes,
        (Loop(0, None, 64, "parallel"), Loop(1, None, 1024)),
        (Access("E", (64, 1024), 4, ((1, 0), (0, 1))), Access("F", shape, 4, written, write=True)),
        1.0,
    )
    return Sketch(0, "two", "two", (Tile(columns, 2, 64),), (main, other))


def test_long_vectors_of_odd_lengths_are_slow(cpu: DeviceAbstraction) -> None:
    sketch = _elementwise_or_sum(240, False)
    cycles = analyse(sketch, np.array([[15, 16], [20, 12], [10, 24], [8, 30]]), cpu).terms["cycles"]
    assert cycles[1] < 2 * cycles[0], "a register that is not full is no long vector"
    assert (cycles[2:] > 3 * cycles[0]).all()


def _grouped() -> Sketch:
    """A 1x1 convolution of 64 pixels and 128 channels in 8 groups of 16, the channels split into 2, the 16 channels of
    the input's group into 2: pixels, channels, reduction, pixels of a tile, reduction, vectorised channels."""
    axes = (Axis("p", 64, False), Axis("c", 128, False, (8, 16)), Axis("k", 16, True))
    loops = (Loop(0, 0, kind="parallel"), Loop(1, 2), Loop(2, 4), Loop(0, 1), Loop(2, 5), Loop(1, 3, kind="vectorize"))
    accesses = (
        Access("A", (64, 128), 4, ((1, 0, 0, 0), (0, 16, 0, 1))),
        Access("B", (16, 128), 4, ((0, 0, 0, 1), (0, 16, 1, 0))),
        Access("C", (64, 128), 4, ((1, 0, 0, 0), (0, 16, 1, 0)), write=True),
    )
    statement = Statement("grouped", axes, loops, accesses, 2.0)
    return Sketch(0, "grouped", "grouped", (Tile(64, 2, 64), Tile(128, 2, 64), Tile(16, 2, 16)), (statement,))


def test_a_vector_over_two_groups_takes_each_lane_by_itself(cpu: DeviceAbstraction) -> None:
    matrix = np.array([[8, 8, 8, 16, 1, 16], [8, 8, 4, 32, 1, 16], [8, 8, 2, 64, 1, 16]])
    known = analyse(_grouped(), matrix, cpu).terms
    # One group in a vector: a broadcast of the input, a vector of the weights, a sixteenth of the sum.
    assert known["loads"][0] == pytest.approx(1 + 1 + 1 / 16)
    # Two and four: of 16 lanes each is loaded and put into its place.
    assert known["loads"][1:] == pytest.approx(2 * 16 + 1 + 1 / 16)
    assert (known["cycles"][1:] > 10 * known["cycles"][0]).all()


def _strided(stride: int) -> Sketch:
    """A row of 64 products of every ``stride``-th element of a row, split into 2 and vectorised."""
    accesses = (
        Access("A", (64 * stride,), 4, ((stride, 0),)),
        Access("B", (16,), 4, ((0, 1),)),
        Access("C", (64,), 4, ((1, 0),), write=True),
    )
    loops = (Loop(0, 0), Loop(1, None, 16), Loop(0, 1, kind="vectorize"))
    statement = Statement("strided", (Axis("x", 64, False), Axis("k", 16, True)), loops, accesses, 2.0)
    return Sketch(0, "strided", "strided", (Tile(64, 2, 64),), (statement,))


def test_lanes_a_small_stride_apart_are_loaded_whole_and_shuffled(cpu: DeviceAbstraction) -> None:
    loads = [analyse(_strided(stride), np.array([[4, 16]]), cpu).terms["loads"][0] for stride in (1, 2, 3, 40)]
    # A vector of A for each operation, from as many registers as it spans, at most two loads for each of 16 lanes; a
    # broadcast of B; a sixteenth of the sum.
    assert loads == pytest.approx([n + 1 + 1 / 16 for n in (1, 2, 3, 32)])


def test_lines_are_kept_from_one_iteration_to_the_next(cpu: DeviceAbstraction) -> None:
    """Products of 8 rows of A, each line of which has 16 of the 4,096 steps that no L1 cache holds."""
    axes = (Axis("i", 64, False), Axis("j", 64, False), Axis("k", 4096, True))
    loops = (
        Loop(0, 0, kind="parallel"),
        Loop(1, 2),
        Loop(2, None, 4096),
        Loop(0, 1, kind="unroll"),
        Loop(1, 3, kind="vectorize"),
    )
    accesses = (
        Access("A", (64, 4096), 4, ((1, 0, 0), (0, 0, 1))),
        Access("B", (4096, 64), 4, ((0, 0, 1), (0, 1, 0)), packed=True),
        Access("C", (64, 64), 4, ((1, 0, 0), (0, 1, 0)), write=True, scope="local"),
    )
    statement = Statement("matmul", axes, loops, accesses, 2.0, accumulator_depth=2)
    sketch = Sketch(0, "matmul", "matmul", (Tile(64, 2, 64), Tile(64, 2, 64)), (statement,))
    terms = analyse(sketch, np.array([[8, 8, 4, 16]]), cpu).terms
    # 8 x 4 tiles, each 4,096 x (8 + 16) elements of whole lines: 16 times as much of A if its lines were dropped.
    moved = 32 * 4096 * (8 + 16) * 4
    hertz = cpu.peak_flops / (cpu.cores * cpu.lanes * 4)
    assert terms["l1_secs"][0] == pytest.approx(moved / (2 * hertz * FITTED.l1_fill_bytes_per_cycle), rel=0.01)


def test_a_reduction_loop_of_one_iteration_is_none(cpu: DeviceAbstraction) -> None:
    """Where the inner reduction loop has one iteration, a step of the outer one is the whole tile of 8 pixels."""
    inner, outer = np.array([[8, 8, 8, 16, 1, 16]]), np.array([[8, 8, 8, 16, 16, 1]])
    terms = [analyse(_grouped(), matrix, cpu).terms for matrix in (inner, outer)]
    assert [known["step_operations"].tolist() for known in terms] == [[1.0], [8.0]]
    # Eight pixels share the weights: eight broadcasts and one vector for eight operations.
    assert terms[1]["loads"][0] == pytest.approx(9 / 8 + 1 / 16)


def test_a_vector_of_an_odd_length_goes_to_memory_in_parts(cpu: DeviceAbstraction) -> None:
    sketch = _elementwise_or_sum(240, False)
    stores = analyse(sketch, np.array([[15, 16], [30, 8], [20, 12], [24, 10]]), cpu).terms["stores"]
    assert stores.tolist() == [1, 1, 2, 2], "12 lanes are 8 and 4, 10 are 8 and 2"


def _rows_of_sums(steps: int) -> Sketch:
    """Eight rows of 64 sums over ``steps`` neighbours, the 64 split into 2 around and inside of the reduction, with the
    sums of a tile in registers."""
    axes = (Axis("c", 8, False), Axis("x", 64, False), Axis("k", steps, True))
    loops = (Loop(0, None, 8, "parallel"), Loop(1, 0), Loop(2, None, steps), Loop(1, 1, kind="vectorize"))
    accesses = (
        Access("A", (8, 64 + steps), 4, ((1, 0, 0), (0, 1, 1))),
        Access("B", (8, steps), 4, ((1, 0, 0), (0, 0, 1))),
        Access("C", (8, 64), 4, ((1, 0, 0), (0, 1, 0)), write=True),
    )
    statement = Statement("sums", axes, loops, accesses, 2.0, accumulator_depth=2)
    return Sketch(0, "sums", "sums", (Tile(64, 2, 64),), (statement,))


def test_a_compiler_vectorises_around_short_sums(cpu: DeviceAbstraction) -> None:
    known = analyse(_rows_of_sums(3), np.array([[64, 1], [8, 8]]), cpu).terms
    assert known["vector"].tolist() == [64, 8], "the schedule's own vectors stay"
    # Three elements of A and three of B for three operations, each worth two loads, and a third of the sum's.
    assert known["loads"][0] == pytest.approx(2 * (3 + 3) / 3 + 1 / 3)
    # A loop of 64 is too short for a register of 128, and 48 steps are not unrolled.
    assert analyse(_rows_of_sums(3), np.array([[64, 1]]), dataclasses.replace(cpu, lanes=128)).terms[
        "vector"
    ].tolist() == [1]
    assert analyse(_rows_of_sums(48), np.array([[64, 1]]), cpu).terms["vector"].tolist() == [1]


def test_what_writes_short_sums_back_is_vectorised_with_them(cpu: DeviceAbstraction) -> None:
    sketch = _rows_of_sums(3)
    accesses = (Access("C", (8, 64), 4, ((1, 0), (0, 1))), Access("D", (8, 64), 4, ((1, 0), (0, 1)), write=True))
    loops = (Loop(0, None, 8), Loop(1, None, 64))
    write = Statement("write", (Axis("c", 8, False), Axis("x", 64, False)), loops, accesses, 1.0, fixed_depth=2)
    both = dataclasses.replace(sketch, statements=(*sketch.statements, write))
    around, scalar = analyse(both, np.array([[64, 1], [32, 2]]), cpu).terms["write.vector"]
    assert (around, scalar) == (64, 2)


def test_loops_of_one_iteration_are_described(cpu: DeviceAbstraction) -> None:
    axes = (Axis("x", 1, False), Axis("k", 1, True))
    access = Access("C", (1,), 4, ((1, 0),), write=True)
    one = Statement("one", axes, (Loop(0, 0), Loop(1, None, 1), Loop(0, 1)), (access,), 2.0, accumulator_depth=1)
    known = analyse(Sketch(0, "one", "one", (Tile(1, 2, 64),), (one,)), np.array([[1, 1]]), cpu)
    assert 0 < known.latency_secs < 1e-8, "one iteration runs on the thread that is there"


def test_a_sum_over_the_innermost_loop_waits_for_each_addition(cpu: DeviceAbstraction) -> None:
    matrix = np.array([[15, 16]])
    copy = analyse(_elementwise_or_sum(240, False), matrix, cpu).terms["other.secs"][0]
    total = analyse(_elementwise_or_sum(240, True), matrix, cpu).terms["other.secs"][0]
    # 64 * 1024 additions of 4 cycles each, on two cores of 4 GHz, and the start of a parallel region.
    assert total == pytest.approx(64 * 1024 * 4 / (2 * 4e9) + 3e-6, rel=1e-5)
    assert copy < total / 3


@pytest.mark.parametrize("name", ["tiled", "blocked"])
def test_never_absurd(name: str, request: pytest.FixtureRequest, cpu: DeviceAbstraction) -> None:
    sketch: Sketch = request.getfixturevalue(name)
    rows = sample(sketch, 2000, np.random.default_rng(0))
    known = analyse(sketch, rows, cpu)
    assert np.isfinite(known.latency_secs).all()
    assert (known.latency_secs > 2 * 256**3 / cpu.peak_flops).all()
    assert all(term.shape == (2000,) and np.isfinite(term).all() for term in known.terms.values())
    assert known.feasible.any()
    # One row alone gives the same as in company.
    assert latency_secs(sketch, rows[7:8], cpu) == pytest.approx(known.latency_secs[7:8])


def test_undescribed_sketch_is_refused_clearly(undescribed: Sketch, cpu: DeviceAbstraction) -> None:
    rows = sample(undescribed, 3, np.random.default_rng(0))
    with pytest.raises(ValueError, match="without a description"):
        latency_secs(undescribed, rows, cpu)
    assert feasible(undescribed, rows, cpu).all()


def test_cuda_symbols_by_hand(threads: Sketch, gpu: DeviceAbstraction) -> None:
    # i: 8 blocks, 1, 8 threads, 4, 1. j: 4 blocks, 1, 16 threads, 2, 2. k: 32 x 8.
    row = np.array([[8, 1, 8, 4, 1, 4, 1, 16, 2, 2, 32, 8, 0]])
    known = analyse(threads, row, gpu)
    main, fetch_a, fetch_b, write = known.symbols
    for symbols in known.symbols:
        assert symbols.s1 == 4 * 4 + 4 + 4  # sums, and one step's elements of A and of B
        assert symbols.s2 == 2 * 4 * 4
        assert symbols.s3 == 4 * (32 * 8 + 8 * 64)  # both staged tiles for 8 steps of k
        assert symbols.s4 == 128
        assert symbols.s6 == 32
    assert [float(each.s5[0]) for each in known.symbols] == [
        0,  # it computes on shared memory alone
        4 * 32 * 32 * (32 * 8),  # 32 blocks x 32 steps
        4 * 32 * 32 * (8 * 64),
        4 * 256 * 256,
    ]
    assert [float(each.s7[0]) for each in (fetch_a, fetch_b, write)] == [8, 64, 64]
    assert main.s8 == 2 * 256**3
    assert fetch_a.s8 == write.s8 == 0
    # 4 warps on 4 schedulers, full; 32 of 80 multiprocessors; the L0 term 32 / (24 + 32); runs of 8 of 32 words.
    compute = 2 * 256**3 / (14e12 * (32 / 56) * 0.4)
    memory = (4 * 32 * 32 * 256 / (8 / 32) + 4 * 32 * 32 * 512 + 4 * 256 * 256) / 9e11
    assert known.latency_secs[0] == pytest.approx(compute + memory + 3e-6, rel=1e-5)
    assert known.feasible.all()


def test_cuda_limits(threads: Sketch, gpu: DeviceAbstraction) -> None:
    rows = np.array(
        [
            [8, 1, 8, 4, 1, 4, 1, 16, 2, 2, 32, 8, 0],
            [1, 1, 64, 4, 1, 4, 1, 64, 1, 1, 32, 8, 0],  # 4,096 threads
            [1, 1, 8, 8, 4, 1, 1, 16, 4, 4, 32, 8, 0],  # 512 sums a thread: 560 registers, 255 at hand
            [1, 1, 32, 8, 1, 1, 1, 32, 8, 1, 32, 8, 0],  # 80 registers, 64 at hand for each of 1,024 threads: spilled
            [1, 1, 32, 8, 1, 4, 1, 16, 2, 2, 4, 64, 0],  # 82 KB of shared memory
            [8, 4, 4, 2, 1, 4, 4, 4, 2, 2, 32, 8, 0],  # 16 virtual threads
            [32, 1, 4, 2, 1, 32, 1, 4, 1, 2, 32, 8, 0],  # 16 threads: half a warp
        ]
    )
    assert feasible(threads, rows, gpu).tolist() == [True, False, False, True, False, False, False]
    # What is over the limit of a memory alone has a penalty.
    assert model(threads, rows, gpu).within_limits.tolist() == [True, False, True, True, True, False, False]


def test_cuda_penalties_of_memories_by_hand(threads: Sketch, gpu: DeviceAbstraction) -> None:
    # One block of 16 x 16 threads with 4 x 4 x 4 x 4 sums each; and 4 blocks that stage 320 rows or columns of 64.
    rows = np.array([[1, 1, 16, 4, 4, 1, 1, 16, 4, 4, 32, 8, 0], [1, 1, 32, 8, 1, 4, 1, 16, 2, 2, 4, 64, 0]])
    known = analyse(threads, rows, gpu)
    main = known.symbols[0]
    assert main.s1.tolist() == [256 + 16 + 16, 32 + 8 + 4]
    assert main.s3.tolist() == [4 * 512 * 8, 4 * 320 * 64]
    terms = penalties(main, limits(gpu))
    assert terms.l0_m == pytest.approx([255 / 288, 1.0])
    assert terms.l1_m == pytest.approx([1.0, 49152 / 81920])
    assert known.feasible.tolist() == [True, False]
    # Equation 1 of the first: the L0 term 512 / (288 + 512), one of 80 multiprocessors; A in runs of 8 of 32 words.
    compute = 2 * 256**3 / (14e12 * 0.64 / 80)
    memory = (4 + 1 + 1) * 4 * 256 * 256 / (9e11 * 255 / 288)
    assert known.latency_secs[0] == pytest.approx(compute + memory + 3e-6, rel=1e-5)


def tensor_product(threads: Sketch) -> Sketch:
    """The product of 16-bit matrices on tensor cores, with sums of 32 bits: loops over threads are over warps."""
    main, *others = threads.statements
    operands = tuple(a if a.write else dataclasses.replace(a, element_bytes=2) for a in main.accesses)
    return dataclasses.replace(threads, statements=(dataclasses.replace(main, warp=32, accesses=operands), *others))


@pytest.mark.parametrize(("cores", "busy"), [(4, 1.0), (8, 0.5)])
def test_cuda_symbols_of_tensor_cores_by_hand(threads: Sketch, gpu: DeviceAbstraction, cores: int, busy: float) -> None:
    # i and j: 8 blocks, 1, 2 warps, 1, 16; k: 16 x 16. Each of 4 warps has one product of 16 x 16 x 16 at hand.
    row = np.array([[8, 1, 2, 1, 16, 8, 1, 2, 1, 16, 16, 16, 0]])
    device = dataclasses.replace(gpu, tensor_cores=cores, tensor_flops=112e12)
    known = analyse(tensor_product(threads), row, device)
    main, *others = known.symbols
    assert main.s9 == 4
    assert all((each.s9 == 0).all() for each in others)
    assert main.s1 == (256 + 128 + 128) / 32  # 256 sums; fragments of 256 values of 16 bits, two to a register
    assert main.s2 == 2 * 16**3 / 32
    assert main.s4 == 128
    terms = penalties(main, limits(device))
    assert terms.l0_t == pytest.approx(busy)
    # A fragment that is filled inside of the outer k alone holds all 16 x 16 values of A too; inside of nothing, 256 k.
    for depth, held in ((7, 128), (6, 16 * 128)):
        sketch = tensor_product(threads)
        product, fetch, *rest = sketch.statements
        shared = product.accesses[0]
        fragment = dataclasses.replace(shared, buffer="A_fragment", scope="local")
        fill = dataclasses.replace(
            fetch,
            name="A_fragment",
            accesses=(
                dataclasses.replace(fetch.accesses[1], write=False),
                dataclasses.replace(fetch.accesses[1], buffer="A_fragment", scope="local"),
            ),
            fixed_depth=depth,
        )
        product = dataclasses.replace(product, accesses=(fragment, *product.accesses[1:]))
        filled = dataclasses.replace(sketch, statements=(product, fetch, *rest, fill))
        assert analyse(filled, row, device).symbols[0].s1 == (256 + held + 128) / 32
    # The L0 term 256 / (16 + 256), 64 of 80 multiprocessors.
    compute = 2 * 256**3 / (112e12 * (256 / 272) * 0.8 * busy)
    assert known.terms["compute_secs"][0] == pytest.approx(compute, rel=1e-5)


def test_rows_padded_in_shared_memory(threads: Sketch, gpu: DeviceAbstraction) -> None:
    row = np.array([[8, 1, 8, 4, 1, 4, 1, 16, 2, 2, 32, 8, 0]])
    main, *others = threads.statements
    # Rows of 64 words become 64 + 8 words; rows of 8 become 8 + 0. The statements that fetch say so.
    padded = [
        dataclasses.replace(
            other,
            accesses=tuple(
                dataclasses.replace(a, row_align=(32, 8)) if a.write and a.scope == "shared" else a
                for a in other.accesses
            ),
        )
        for other in others
    ]
    sketch = dataclasses.replace(threads, statements=(main, *padded))
    assert analyse(sketch, row, gpu).symbols[0].s3 == 4 * (32 * 8 + 8 * 72)


def test_a_warp_that_works_as_one_counts_as_its_lanes(threads: Sketch, gpu: DeviceAbstraction) -> None:
    row = np.array([[8, 1, 8, 4, 1, 4, 1, 16, 2, 2, 32, 8, 0]])
    main, *others = threads.statements
    warped = dataclasses.replace(threads, statements=(dataclasses.replace(main, warp=32), *others))
    assert analyse(warped, row, gpu).symbols[0].s4 == 32 * 128
    assert not feasible(warped, row, gpu)[0]


def test_cuda_loops_bound_to_nothing_are_spread_over_blocks(tiled: Sketch, gpu: DeviceAbstraction) -> None:
    known = analyse(tiled, sample(tiled, 50, np.random.default_rng(0)), gpu)
    assert (known.symbols[0].s4 == 1024).all()
    assert (known.symbols[0].s6 == 64).all()
    assert np.isfinite(known.latency_secs).all()


@pytest.mark.parametrize("name", ["tiled", "blocked", "threads"])
def test_chunks_in_float32_are_the_whole_in_float64(
    name: str, request: pytest.FixtureRequest, cpu: DeviceAbstraction, gpu: DeviceAbstraction
) -> None:
    sketch: Sketch = request.getfixturevalue(name)
    device = gpu if name == "threads" else cpu
    rows = sample(sketch, CHUNK + 100, np.random.default_rng(0))
    secs, good = score(sketch, rows, device)
    plain = model(sketch, rows, device, np.float64)
    assert secs == pytest.approx(plain.latency_secs, rel=1e-4)
    assert good.tolist() == plain.feasible.tolist()
    known = analyse(sketch, rows, device)
    assert known.latency_secs.tolist() == secs.tolist()
    assert known.feasible.tolist() == good.tolist()
    expected = plain.terms()
    assert list(known.terms) == list(expected)
    for term, values in known.terms.items():
        assert values.shape == (len(rows),)
        assert values == pytest.approx(expected[term], rel=1e-3), term
    assert len(score(sketch, rows[:0], device)[0]) == 0
    assert all(len(values) == 0 for values in analyse(sketch, rows[:0], device).terms.values())


def test_variants_are_evaluated_each_as_its_own(blocked: Sketch, cpu: DeviceAbstraction) -> None:
    main, relu = blocked.statements
    place = Location("relu", (-1, 0, 1))
    variants = ((main, relu), (main,))
    sketch = Sketch(5, "r", "v", (*blocked.decisions, place), variants[0], "", variants, (0, 1, 0))
    rows = sample(sketch, 300, np.random.default_rng(0))
    known = analyse(sketch, rows, cpu)
    assert score(sketch, rows, cpu)[0].tolist() == known.latency_secs.tolist()
    for at, statements in ((0, variants[0]), (1, variants[1]), (2, variants[0])):
        own = rows[:, -1] == at
        alone = dataclasses.replace(sketch, statements=statements, variants=(), variant_of=())
        assert known.latency_secs[own].tolist() == latency_secs(alone, rows[own], cpu).tolist()
    assert (known.terms["relu.secs"][rows[:, -1] == 1] == 0).all()
    assert (known.terms["relu.secs"][rows[:, -1] != 1] > 0).all()
