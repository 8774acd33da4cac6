"""Sketches made by hand, as the design space describes them, and a device."""

from __future__ import annotations

import dataclasses
import os

# Arrays here are small: threads of BLAS and OpenMP only wait for one another. Set before numpy is first loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from fleet_tune.base.domain import DeviceAbstraction
from fleet_tune.base.sketch import Access, Axis, Choice, Location, Loop, Sketch, Statement, Tile
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


@pytest.fixture
def threads(tiled: Sketch) -> Sketch:
    """The matrix product on CUDA: blocks, virtual threads, threads, k outer, inner tile, k inner, innermost.

    Both operands are fetched into shared memory for each step of the outer k; the result is written back at the end.
    """
    loops = (
        Loop(0, 0, kind="blockIdx.x"), Loop(1, 5, kind="blockIdx.x"), Loop(0, 1, kind="vthread"),
        Loop(1, 6, kind="vthread"), Loop(0, 2, kind="threadIdx.x"), Loop(1, 7, kind="threadIdx.x"), Loop(2, 10),
        Loop(0, 3), Loop(1, 8), Loop(2, 11), Loop(0, 4), Loop(1, 9),
    )  # fmt: skip
    axes = tiled.statements[0].axes

    def copy(name: str, source: Access, target: Access, depth: int, flop: float = 0.0) -> Statement:
        own = (Axis("v0", 256, False), Axis("v1", 256, False))
        plain = ((1, 0), (0, 1))
        accesses = (
            dataclasses.replace(source, index=plain, write=False),
            dataclasses.replace(target, index=plain, write=True),
        )
        return Statement(name, own, (Loop(0, None, 256), Loop(1, None, 256)), accesses, flop, fixed_depth=depth)

    a = Access("A_shared", (256, 256), 4, ((1, 0, 0), (0, 0, 1)), scope="shared")
    b = Access("B_shared", (256, 256), 4, ((0, 0, 1), (0, 1, 0)), scope="shared")
    c = Access("C_local", (256, 256), 4, ((1, 0, 0), (0, 1, 0)), write=True, scope="local")
    main = Statement("matmul", axes, loops, (a, b, c), 2.0, unroll_column=12)
    statements = (
        main,
        copy("A_shared", Access("A", (256, 256), 4, ()), a, 7),
        copy("B_shared", Access("B", (256, 256), 4, ()), b, 7),
        copy("C", c, Access("C", (256, 256), 4, ()), 6),
    )
    decisions = (Tile(256, 5, 64), Tile(256, 5, 64), Tile(256, 2, 64), Choice("unroll", (0, 64, 1024)))
    return Sketch(0, "tiling", "cuda", decisions, statements)
