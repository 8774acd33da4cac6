"""Tiles of rows that threads share without waiting for each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc, Var

from devices.sketches.dynamic.rows import dynamic_extents, rows_of, specialized
from devices.sketches.dynamic.threads import can_be_shared, is_serial
from devices.sketches.dynamic.tiled_kernel import tiled_kernel

MOST = 13


def product(stored_once: bool) -> PrimFunc:
    n = Var("n", "int64")
    width, results = (tirx.const(extent, "int64") for extent in (8, 15))
    x, w = te.placeholder((n, width), name="x"), te.placeholder((width, results), name="w")
    result = topi.matmul(x, w)
    return te.create_prim_func([x, w, topi.nn.relu(result) if stored_once else result])


def over_columns(kernel: PrimFunc) -> PrimFunc:
    """Parallel over blocks of five columns, in one loop."""
    made = Schedule(tvm.IRModule({"main": kernel}))
    *inner, last = made.get_child_blocks(made.get_sblock("root"))
    row, column = made.get_loops(last)[:2]
    outer, within = made.split(column, [None, 5])
    made.reorder(outer, row, within)
    made.parallel(outer)
    for block in inner:
        made.compute_at(block, outer)
    return made.mod["main"]


def one_after_the_other(kernel: PrimFunc) -> PrimFunc:
    """Two statements, of which the second one needs all of the first."""
    made = Schedule(tvm.IRModule({"main": kernel}))
    for block in made.get_child_blocks(made.get_sblock("root")):
        made.parallel(made.get_loops(block)[1])
    return made.mod["main"]


def shared(kernel: PrimFunc, fixed: dict[int, PrimFunc], overlap: int, threads: int) -> PrimFunc:
    (extent,) = dynamic_extents(kernel)
    rows = rows_of(kernel, extent)
    assert rows is not None
    return tiled_kernel(kernel, extent, {extent: rows}, fixed, overlap, threads)


def check(kernel: PrimFunc, stored_once: bool, least: int) -> None:
    run = tvm.tirx.build(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}), target="llvm")["main"]
    for extent in range(least, MOST + 1):
        generator = np.random.default_rng(extent)
        x, w = (generator.standard_normal(shape).astype("float32") for shape in ((extent, 8), (8, 15)))
        result = tvm.runtime.tensor(np.full((extent, 15), np.nan, "float32"))
        run(*map(tvm.runtime.tensor, (x, w)), result)
        expected = np.maximum(x @ w, 0) if stored_once else x @ w
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=str(extent))


def sized(kernel: PrimFunc, size: int) -> PrimFunc:
    (extent,) = dynamic_extents(kernel)
    return specialized(kernel, {extent: size})


@pytest.mark.parametrize("sizes", [(1, 2, 4), (3, 4)])
@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_compute_all_rows_in_one_parallel_loop(sizes: tuple[int, ...], overlap: int, threads: int) -> None:
    kernel = product(True)
    # One of them is left to a single thread.
    fixed = {size: over_columns(sized(kernel, size)) if size != 2 else sized(kernel, size) for size in sizes}
    found = shared(kernel, fixed, overlap, threads)
    assert found.script().count("T.parallel") == 1
    check(found, True, sizes[0])


def test_no_row_is_computed_by_two_threads_where_its_sum_grows_in_the_result() -> None:
    kernel = product(False)
    fixed = {size: over_columns(sized(kernel, size)) for size in (1, 2, 4)}
    assert can_be_shared(fixed[4], overlaps=False)
    assert not can_be_shared(fixed[4], overlaps=True)
    assert shared(kernel, fixed, 0, 2).script().count("T.parallel") == 1
    waiting = shared(kernel, fixed, 3, 2)
    assert waiting.script().count("T.parallel") == 3
    check(waiting, False, 1)


def test_threads_wait_between_statements_of_a_tile() -> None:
    kernel = product(True)
    fixed = {size: one_after_the_other(sized(kernel, size)) for size in (1, 2, 4)}
    assert not can_be_shared(fixed[4], overlaps=False)
    waiting = shared(kernel, fixed, 1, 2)
    assert waiting.script().count("T.parallel") == 6
    check(waiting, True, 1)


def test_one_row_starts_no_threads_where_its_kernel_has_no_use_for_them() -> None:
    x = te.placeholder((Var("n", "int64"), 8), name="x")
    kernel = te.create_prim_func([x, topi.exp(x)])

    def over_rows(size: int) -> Any:
        made = Schedule(tvm.IRModule({"main": sized(kernel, size)}))
        made.parallel(made.get_loops(made.get_child_blocks(made.get_sblock("root"))[0])[0])
        return made.mod["main"]

    fixed = {size: over_rows(size) for size in (1, 2, 4)}
    assert [is_serial(each) for each in fixed.values()] == [True, False, False]
    found = shared(kernel, fixed, 1, 2)
    alone, rest = found.script().split("else:", 1)
    assert alone.count("T.parallel") == alone.count("T.parallel(T.int64(1))") == 1
    assert rest.count("T.parallel") == 1
    run = tvm.tirx.build(tvm.IRModule({"main": found.with_attr("global_symbol", "main")}), target="llvm")["main"]
    for rows in range(1, MOST):
        a = np.random.default_rng(rows).standard_normal((rows, 8)).astype("float32")
        result = tvm.runtime.tensor(np.full(a.shape, np.nan, "float32"))
        run(tvm.runtime.tensor(a), result)
        np.testing.assert_allclose(result.numpy(), np.exp(a), rtol=1e-5)


def test_no_thread_is_started_where_no_tile_has_a_use_for_it() -> None:
    kernel = product(True)
    found = shared(kernel, {size: sized(kernel, size) for size in (1, 2, 4)}, 1, 2)
    assert "T.parallel" not in found.script()
    check(found, True, 1)
