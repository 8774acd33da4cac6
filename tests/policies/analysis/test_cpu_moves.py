"""The CPU model of statements that only move data, against constants worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Access, Axis, Loop, Sketch, Statement, Tile
from policies.analysis.analyzer import analyse, latency_secs
from policies.analysis.cpu.fitted import FITTED
from policies.analysis.cpu.moves import cycles_of_moves, moves_across, share_beyond
from policies.analysis.cpu.program import Program
from policies.analysis.quantities import parallel_extent


def moved(columns: int = 96, element_bytes: int = 4, flop: float = 0.0, crossed: bool = True, rows: int = 80) -> Sketch:
    """``columns`` by ``rows`` values written by rows of ``columns``, read by columns (or not) in tiles of both."""
    loops = (Loop(0, 0, kind="parallel"), Loop(1, 2, kind="parallel"), Loop(0, 1), Loop(1, 3, kind="vectorize"))
    shape, index = ((columns, rows), ((0, 1), (1, 0))) if crossed else ((rows, columns), ((1, 0), (0, 1)))
    accesses = (
        Access("A", shape, element_bytes, index),
        Access("B", (rows, columns), element_bytes, ((1, 0), (0, 1)), write=True),
    )
    axes = (Axis("i", rows, False), Axis("j", columns, False))
    statement = Statement("move", axes, loops, accesses, flop)
    return Sketch(0, "move", "tiled-transpose", (Tile(rows, 2, 64), Tile(columns, 2, 64)), (statement,))


def tiled(tile: int, vector: int, columns: int = 96, rows: int = 80) -> list[int]:
    return [rows // tile, tile, columns // vector, vector]


def cycles(sketch: Sketch, rows: list[list[int]], device: DeviceAbstraction) -> list[float]:
    program = Program(sketch, np.array(rows), device, np.float64, FITTED)
    return cycles_of_moves(program, parallel_extent(program.main)).tolist()


def test_cycles_of_an_element_by_hand(cpu: DeviceAbstraction) -> None:
    rows = [tiled(16, 16), tiled(4, 24), tiled(1, 1), tiled(80, 6)]
    assert cycles(moved(), rows, cpu) == pytest.approx(
        [
            0.5 + 0.3 / 256 + 0.2 / 16 + 0.4 / 16,  # whole lines, and whole registers of 16 lanes
            0.5 + 0.3 / 96 + 0.2 / 4 + 0.4 * 2 / 24,  # four elements of each line; stores of 16 and of 8
            0.5 + 0.3 + 0.2 + 0.4,  # of everything one for each element
            0.5 + 0.3 / 480 + 0.2 / 16 + 0.4 * 2 / 6,  # a line has 16 elements; stores of 4 and of 2
        ]
    )
    # Of 2 bytes 32 are in a line, and in a register.
    assert cycles(moved(element_bytes=2), [tiled(80, 48)], cpu) == pytest.approx(
        [0.5 + 0.3 / 3840 + 0.2 / 32 + 0.4 * 2 / 48]
    )


def test_rows_a_power_of_two_apart_push_each_other_out(cpu: DeviceAbstraction) -> None:
    # Rows of 1 KiB are in 4 of the 64 sets of lines. 64 of them are 16 lines in each, of which it can have 9 (three
    # quarters of 48 KiB, in pages of 4 KiB): a line is fetched again for each element. 32 are 8.
    device = replace(cpu, l1_bytes=48 * 1024)
    sizes = [tiled(16, vector, 64, 256) for vector in (32, 64)]
    few, many = cycles(moved(64, rows=256), sizes, device)
    assert few == pytest.approx(0.5 + 0.3 / 512 + 0.2 / 16 + 0.4 / 16)
    assert many == pytest.approx(0.5 + 0.3 / 1024 + 0.2 + 0.4 / 16)
    # Rows of 1 KiB and a line are in all sets.
    assert cycles(moved(64, rows=272), [tiled(16, 64, 64, 272)], device) == pytest.approx([many - 0.2 * 15 / 16])


def test_lines_are_lost_where_the_first_cache_does_not_hold_them(cpu: DeviceAbstraction) -> None:
    # Without tiles an iteration of the outer loop reads 16 rows along 1,040 lines, 65 KiB.
    axes, whole = moved(1040, rows=272).statements[0], []
    for columns in (1040, 104):
        loops = (Loop(0, None, 17, "parallel"), Loop(0, None, 16), Loop(1, None, columns))
        sized = replace(axes, axes=(axes.axes[0], Axis("j", columns, False)), loops=loops)
        accesses = (
            replace(axes.accesses[0], shape=(columns, 272)),
            replace(axes.accesses[1], shape=(272, columns)),
        )
        sketch = Sketch(0, "whole", "none", (), (replace(sized, accesses=accesses),))
        whole += cycles(sketch, [[]], replace(cpu, l1_bytes=48 * 1024))
    assert whole == pytest.approx([0.5 + 0.3 / 16640 + 0.2 + 0.4, 0.5 + 0.3 / 1664 + 0.2 / 16 + 0.4])


def test_seconds_by_hand(cpu: DeviceAbstraction) -> None:
    known = analyse(moved(), np.array([tiled(16, 16)]), cpu)
    hertz = cpu.peak_flops / (cpu.cores * cpu.lanes * 4)
    per_element = 0.5 + 0.3 / 256 + 0.2 / 16 + 0.4 / 16
    # 30 tiles of 256 elements, on all cores; what it moves fits into the caches, and adds nothing.
    assert 30 % cpu.cores == 0
    assert known.latency_secs[0] == pytest.approx(FITTED.moves.launch_secs + 7680 * per_element / (hertz * cpu.cores))
    assert known.terms["cycles"][0] == pytest.approx(16 * per_element)  # of a vector
    assert all(np.isfinite(term).all() for term in known.terms.values())


def test_a_tile_that_uses_whole_lines_is_cheaper(cpu: DeviceAbstraction) -> None:
    secs = latency_secs(moved(), np.array([tiled(16, 16), tiled(1, 16), tiled(16, 1), tiled(1, 1)]), cpu)
    assert secs[0] < secs[1:3].min()
    assert secs[1:3].max() < secs[3]


def test_data_beyond_the_caches_are_moved(cpu: DeviceAbstraction) -> None:
    assert share_beyond(np.array([0.0, 750.0, 1500.0, 3000.0]), 1000, FITTED).tolist() == [0.0, 0.0, 0.5, 0.75]
    rows = np.array([tiled(16, 16)])
    small = replace(cpu, l2_bytes=4096, l3_bytes=0)
    assert latency_secs(moved(), rows, small)[0] > 1.1 * latency_secs(moved(), rows, cpu)[0]


def test_what_is_no_move_across_lines() -> None:
    assert moves_across(moved().statements[0])
    assert not moves_across(moved(flop=1.0).statements[0])  # it computes
    assert not moves_across(moved(crossed=False).statements[0])  # it copies along the lines
    statement = moved().statements[0]
    reduced = replace(statement, axes=(replace(statement.axes[0], reduction=True), statement.axes[1]))
    assert not moves_across(reduced)
    every_second = (Access("A", (80, 192), 4, ((1, 0), (0, 2))), statement.accesses[1])
    assert not moves_across(replace(statement, accesses=every_second))


def test_a_statement_with_arithmetic_keeps_its_inner_loop(
    cpu: DeviceAbstraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [moved(flop=1.0), moved(crossed=False)]
    rows = np.array([tiled(16, 16), tiled(4, 24)])
    before = [latency_secs(sketch, rows, cpu) for sketch in others]
    across = latency_secs(moved(), rows, cpu)
    monkeypatch.setattr("policies.analysis.analyzer.moves_across", lambda _: False)
    for sketch, secs in zip(others, before, strict=True):
        assert (latency_secs(sketch, rows, cpu) == secs).all()
    assert (latency_secs(moved(), rows, cpu) != across).all()
