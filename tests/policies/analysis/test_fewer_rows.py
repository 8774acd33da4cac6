"""A schedule that is applied to fewer rows: its decisions by hand, its time, and what a draft makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Choice, Loop, Sketch, SketchOfFewerRows, Statement, Tile
from policies.analysis.analyzer import latency_secs
from policies.analysis.fewer_rows import applied, log_share_of_fewer_rows
from policies.search.draft import draft
from tests.policies.conftest import matmul_accesses, matmul_axes


def product(rows: int) -> Sketch:
    """A product with 8192 x 32 weights: blocks of rows and of columns in parallel, and tiles of both in registers."""
    loops = (
        Loop(0, 0, kind="parallel"), Loop(1, 3, kind="parallel"), Loop(0, 1), Loop(2, None, 8192),
        Loop(0, 2, kind="unroll"), Loop(1, 4, kind="vectorize"),
    )  # fmt: skip
    main = Statement("matmul", matmul_axes(rows, 32, 8192), loops, matmul_accesses(rows, 32, 8192, packed=True), 2.0)
    return Sketch(0, "test", "test", (Tile(rows, 3, 64), Tile(32, 2, 32)), (main,))


def test_decisions_become_what_tvm_makes_of_them() -> None:
    sketch = replace(product(64), decisions=(Tile(64, 3, 64), Choice("unroll", (0, 16)), Tile(512, 2, 512)))
    other = replace(sketch, decisions=(Tile(8, 3, 8), *sketch.decisions[1:]))
    matrix = np.array([[8, 2, 4, 1, 64, 8], [2, 16, 2, 0, 2, 256], [1, 1, 64, 0, 1, 512], [64, 1, 1, 1, 512, 1]])
    assert applied(sketch, other, matrix).tolist() == [
        [1, 2, 4, 1, 64, 8],  # 8 / 4 / 2
        [1, 4, 2, 0, 2, 256],  # 16 does not divide 4: all of it
        [1, 1, 8, 0, 1, 512],  # 64 does not divide 8
        [8, 1, 1, 1, 512, 1],
    ]


def test_the_time_is_that_of_all_tiles(cpu: DeviceAbstraction) -> None:
    sketch, other = product(64), product(8)
    matrix = np.array([[2, 4, 8, 2, 16], [2, 8, 4, 1, 32]])
    assert log_share_of_fewer_rows(sketch, matrix, cpu).tolist() == [0, 0]
    largest = latency_secs(sketch, matrix, cpu)
    smaller = latency_secs(other, np.array([[1, 1, 8, 2, 16], [1, 2, 4, 1, 32]]), cpu)
    both = replace(sketch, fewer_rows=(SketchOfFewerRows(other, 1.5),))
    expected = np.log((largest + 1.5 * smaller) / largest)
    assert log_share_of_fewer_rows(both, matrix, cpu) == pytest.approx(expected, rel=1e-5)


def test_a_draft_prefers_what_keeps_all_threads_busy_for_few_rows(cpu: DeviceAbstraction) -> None:
    """Blocks of 32 rows keep all threads busy for 64, and are one thread's work for 8."""
    sketch, other = product(64), product(8)
    both = replace(sketch, fewer_rows=(SketchOfFewerRows(other, 4.0),))

    def idle(found: Sketch) -> float:
        """The share of the best candidates that leave threads idle for few rows."""
        best = draft(found, cpu, np.random.default_rng(0)).matrix[:8]
        few = applied(sketch, other, best)
        return float(np.mean(few[:, 0] * few[:, 3] < cpu.cores))

    assert idle(both) == 0
    assert idle(sketch) > 0
