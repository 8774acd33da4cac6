"""Sketches made by hand, as the design space describes them, and a device."""

from __future__ import annotations

import os

# Arrays here are small: threads of BLAS and OpenMP only wait for one another. Set before numpy is first loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from fleet_tune.domain import DeviceAbstraction
from fleet_tune.sketch import Access, Axis, Choice, Location, Loop, Sketch, Statement, Tile
from tests.helpers import devices


@pytest.fixture
def cpu() -> DeviceAbstraction:
    return devices.CPU


@pytest.fixture
def gpu() -> DeviceAbstraction:
    return devices.GPU


def matmul_accesses(m: int, n: int, k: int, packed: bool = False) -> tuple[Access, ...]:
    return (
        Access("A", (m, k), 4, ((1, 0, 0), (0, 0, 1))),
        Access("B", (k, n), 4, ((0, 0, 1), (0, 1, 0)), packed=packed),
        Access("C", (m, n), 4, ((1, 0, 0), (0, 1, 0)), write=True),
    )


def matmul_axes(m: int, n: int, k: int) -> tuple[Axis, ...]:
    return (Axis("i", m, False), Axis("j", n, False), Axis("k", k, True))


@pytest.fixture
def tiled() -> Sketch:
    """A 256^3 matrix product with MetaSchedule's SSRSRS tiling and an unroll choice: 9 + 1 columns."""
    loops = (
        Loop(0, 0), Loop(1, 4), Loop(0, 1), Loop(1, 5), Loop(2, 8),
        Loop(0, 2), Loop(1, 6), Loop(2, 9), Loop(0, 3), Loop(1, 7),
    )  # fmt: skip
    main = Statement(
        "matmul",
        matmul_axes(256, 256, 256),
        loops,
        matmul_accesses(256, 256, 256),
        2.0,
        parallel_limit=32,
        vectorize_limit=64,
        unroll_column=10,
    )
    decisions = (Tile(256, 4, 64), Tile(256, 4, 64), Tile(256, 2, 64), Choice("unroll", (0, 16, 64, 512)))
    return Sketch(0, "multi-level-tiling", "tiled", decisions, (main,))


@pytest.fixture
def blocked() -> Sketch:
    """The same product register-blocked: rows parallel, a local accumulator tile, packed weights."""
    loops = (
        Loop(0, 0, kind="parallel"), Loop(1, 3), Loop(0, 1), Loop(2, 6), Loop(2, 7),
        Loop(0, 2, kind="unroll"), Loop(1, 4, kind="unroll"), Loop(1, 5, kind="vectorize"),
    )  # fmt: skip
    main = Statement(
        "matmul",
        matmul_axes(256, 256, 256),
        loops,
        matmul_accesses(256, 256, 256, packed=True),
        2.0,
        accumulator_depth=3,
    )
    relu = Statement(
        "relu",
        (Axis("i", 256, False), Axis("j", 256, False)),
        (Loop(0, None, 256), Loop(1, None, 256)),
        (
            Access("C", (256, 256), 4, ((1, 0), (0, 1))),
            Access("D", (256, 256), 4, ((1, 0), (0, 1)), write=True),
        ),
        1.0,
        fixed_depth=3,
    )
    decisions = (Tile(256, 3, 16), Tile(256, 3, 64), Tile(256, 2, 64))
    return Sketch(1, "register-blocking", "blocked", decisions, (main, relu))


@pytest.fixture
def undescribed() -> Sketch:
    decisions = (Tile(64, 3, 64), Choice("unroll", (0, 16)), Location("pad", (-2, -1, 0, 1)))
    return Sketch(2, "custom", "undescribed", decisions, (), "the trace uses an instruction without a description")
