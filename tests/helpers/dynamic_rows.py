"""Sketches of a product over several numbers of rows."""

from __future__ import annotations

from dataclasses import replace

from fleet_tune.base.sketch import Loop, Sketch, SketchOfFewerRows, Statement, Tile
from tests.policies.conftest import matmul_accesses, matmul_axes


def product(rows: int) -> Sketch:
    """A product with 8192 x 32 weights: blocks of rows and of columns in parallel, and tiles of both in registers."""
    loops = (
        Loop(0, 0, kind="parallel"), Loop(1, 3, kind="parallel"), Loop(0, 1), Loop(2, None, 8192),
        Loop(0, 2, kind="unroll"), Loop(1, 4, kind="vectorize"),
    )  # fmt: skip
    main = Statement("matmul", matmul_axes(rows, 32, 8192), loops, matmul_accesses(rows, 32, 8192, packed=True), 2.0)
    return Sketch(0, "test", "test", (Tile(rows, 3, 64), Tile(32, 2, 32)), (main,))


def over_rows(work: float) -> Sketch:
    """The product of 64 rows, which is applied to 8 rows too."""
    return replace(product(64), fewer_rows=(SketchOfFewerRows(product(8), work),))
