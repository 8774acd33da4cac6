"""Pruner's symbols and penalties against hand-worked constants; the analyzer's judgement of known schedules."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fleet_tune.domain import DeviceAbstraction
from fleet_tune.sketch import Loop, Sketch, Tile
from policies.analyzer import analyse, feasible, latency_secs
from policies.sampling import sample
from policies.symbols import Limits, Symbols, equation_1, limits, penalties, utilisation


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_utilisation_is_the_papers_example() -> None:
    # "A schedule with six scheduling blocks and hardware with four parallel units": 0.75.
    assert utilisation(array(6, 4, 1, 9), 4).tolist() == [0.75, 1.0, 0.25, 0.75]


def test_penalties_and_equation_1_by_hand() -> None:
    limit = Limits(m_l0=64, m_l1=1000, n_l1=32, pu_l1=4, pu_l2=80, n_l2=32, peak_flops=1e12, bandwidth_bytes=1e11)
    symbols = Symbols(
        s1=array(128), s2=array(256), s3=array(4000), s4=array(100), s5=array(3e6), s6=array(120), s7=array(48),
        s8=array(6e9),
    )  # fmt: skip
    terms = penalties(symbols, limit)
    assert terms.l0_m == pytest.approx(0.5)  # 64 / 128
    assert terms.l0_c == pytest.approx(3.0)  # 1 + 256 / 128
    assert terms.l1_m == pytest.approx(0.25)  # 1000 / 4000
    assert terms.l1_c == pytest.approx(1.0)  # ceil(100 / 32) = 4 warps on 4 schedulers
    assert terms.alpha_l1 == pytest.approx(100 / 128)
    assert terms.l2_c == pytest.approx(0.75)  # 120 / (2 * 80)
    assert terms.l2_m == pytest.approx(0.75)  # 48 / (2 * 32)
    compute = 6e9 / (1e12 * 3.0 * 1.0 * (100 / 128) * 0.75)
    memory = 3e6 / (1e11 * 0.5 * 0.25 * 0.75)
    assert equation_1([symbols], limit) == pytest.approx(compute + memory)
    assert equation_1([symbols, symbols], limit) == pytest.approx(2 * (compute + memory))
    with pytest.raises(ValueError, match="at least one"):
        equation_1([], limit)


def test_limits_of_devices(cpu: DeviceAbstraction, gpu: DeviceAbstraction) -> None:
    assert (limits(cpu).m_l0, limits(cpu).n_l1, limits(cpu).n_l2, limits(cpu).pu_l2) == (32, 16, 16, 2)
    assert (limits(gpu).m_l0, limits(gpu).n_l1, limits(gpu).n_l2, limits(gpu).pu_l1) == (255, 32, 32, 4)


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


@pytest.fixture
def threads(tiled: Sketch) -> Sketch:
    """The matrix product on CUDA: blocks, virtual threads, threads, k outer, inner tile, k inner, innermost."""
    main = tiled.statements[0]
    loops = (
        Loop(0, 0, kind="blockIdx.x"), Loop(1, 5, kind="blockIdx.x"), Loop(0, 1, kind="vthread"),
        Loop(1, 6, kind="vthread"), Loop(0, 2, kind="threadIdx.x"), Loop(1, 7, kind="threadIdx.x"), Loop(2, 10),
        Loop(0, 3), Loop(1, 8), Loop(2, 11), Loop(0, 4), Loop(1, 9),
    )  # fmt: skip
    statement = dataclasses.replace(main, loops=loops, parallel_limit=0, vectorize_limit=0, unroll_column=None)
    return Sketch(0, "tiling", "cuda", (Tile(256, 5, 64), Tile(256, 5, 64), Tile(256, 2, 64)), (statement,))


def test_cuda_symbols_by_hand(threads: Sketch, gpu: DeviceAbstraction) -> None:
    # i: 8 blocks, 1, 8 threads, 4, 1. j: 4 blocks, 1, 16 threads, 2, 2. k: 32 x 8.
    row = np.array([[8, 1, 8, 4, 1, 4, 1, 16, 2, 2, 32, 8]])
    known = analyse(threads, row, gpu)
    symbols = known.symbols[0]
    assert symbols.s6 == 32
    assert symbols.s4 == 128
    assert symbols.s1 == 4 * 4 + 1 + 2  # accumulators, and one step's element of A and two of B
    assert symbols.s3 == 4 * (32 * 8 + 8 * 64)  # both staged tiles for 8 steps of k
    assert symbols.s5 == 4 * (32 * 32 * (32 * 8 + 8 * 64) + 256 * 256)
    assert known.feasible.all()


def test_cuda_limits(threads: Sketch, gpu: DeviceAbstraction) -> None:
    rows = np.array(
        [
            [8, 1, 8, 4, 1, 4, 1, 16, 2, 2, 32, 8],
            [1, 1, 64, 4, 1, 4, 1, 64, 1, 1, 32, 8],  # 4,096 threads
            [1, 1, 16, 4, 4, 1, 1, 16, 4, 4, 4, 64],  # 256 accumulators a thread
            [1, 1, 32, 8, 1, 4, 1, 16, 2, 2, 4, 64],  # 82 KB of shared memory
        ]
    )
    assert feasible(threads, rows, gpu).tolist() == [True, False, False, False]
