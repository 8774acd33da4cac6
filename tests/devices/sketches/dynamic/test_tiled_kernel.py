"""Kernels over any number of rows, made of kernels of fixed numbers of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc, Var

from devices.sketches.dynamic.default_schedule import default_schedule
from devices.sketches.dynamic.rows import dynamic_extents, rows_of, specialized
from devices.sketches.dynamic.tile_counts import tile_counts
from devices.sketches.dynamic.tiled_kernel import LayoutMismatchError, tiled_kernel
from devices.sketches.plain_weights import with_plain_weights
from devices.sketches.rules.overlapping_tiles import with_overlapping_tiles

SIZES = (1, 2, 4)
MOST = 11


def product(columns: int = 16) -> Any:
    n = Var("n", "int64")
    width, results = (tirx.const(extent, "int64") for extent in (8, columns))
    x, w = te.placeholder((n, width), name="x"), te.placeholder((width, results), name="w")
    function = te.create_prim_func([x, w, topi.nn.relu(topi.matmul(x, w))])
    return function.with_attr("layout_free_buffers", [1])


def built(function: Any) -> Any:
    """What is built of a kernel, to be called with any number of rows."""
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return tvm.tirx.build(module, target="llvm")["main"]


def tiled(kernel: Any, schedule: Callable[[Any], Any], sizes: Sequence[int] = SIZES, overlap: int = 0) -> Any:
    *outer, extent = dynamic_extents(kernel)
    rows = {}
    for each in (*outer, extent):
        found = rows_of(kernel, each)
        assert found is not None
        rows[each] = found
    alone = dict.fromkeys(outer, 1)
    fixed = {size: schedule(specialized(kernel, {**alone, extent: size})) for size in sizes}
    return tiled_kernel(kernel, extent, rows, fixed, overlap)


def check_product(run: Any, extent: int, columns: int = 16) -> None:
    """``run``: what is built of a kernel that computes what :func:`product` does."""
    generator = np.random.default_rng(extent)
    x, w = (generator.standard_normal(shape).astype("float32") for shape in ((extent, 8), (8, columns)))
    result = tvm.runtime.tensor(np.full((extent, columns), np.nan, "float32"))
    run(*map(tvm.runtime.tensor, (x, w)), result)
    np.testing.assert_allclose(result.numpy(), np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6, err_msg=str(extent))


@pytest.mark.parametrize("sizes", [(1, 2, 4), (1,), (3, 4), (2, 5, 6)])
@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_any_number_of_rows_is_computed(sizes: tuple[int, ...], overlap: int) -> None:
    run = built(tiled(product(), lambda each: each, sizes, overlap))
    for extent in range(3, MOST + 1):
        check_product(run, extent)


def numbered(each: Any) -> Any:
    """A kernel that multiplies by its number of rows instead of what it is to compute."""
    size = int(each.params[0].ty.shape[0])
    x = te.placeholder((size,), name="x")
    return te.create_prim_func([x, te.compute((size,), lambda i: x[i] * float(size))])


@pytest.mark.parametrize(
    ("overlap", "extent", "tiles"),
    [
        (0, 7, [4, 4, 4, 4, 2, 2, 1]),
        (0, 15, [8] * 8 + [4] * 4 + [2, 2, 1]),
        (1, 7, [4] * 7),  # the tile of 8 does not fit into 7 rows
        (1, 14, [8] * 8 + [4] * 4 + [2, 2]),
        (1, 15, [8] * 15),
        (1, 3, [2, 2, 1]),
        (2, 13, [8] * 8 + [4] * 4 + [1]),
        (2, 14, [8] * 14),
        (2, 30, [8] * 30),
        (100, 12, [8] * 8 + [4] * 4),  # the smaller tile fits exactly
        (100, 13, [8] * 13),
        (100, 5, [4, 4, 4, 4, 1]),
        (100, 16, [8] * 16),
        (100, 1, [1]),
    ],
)
def test_a_tile_overlaps_the_one_before_where_few_rows_are_computed_again(
    overlap: int, extent: int, tiles: list[int]
) -> None:
    x = te.placeholder((Var("n", "int64"),), name="x")
    kernel = tiled(te.create_prim_func([x, topi.exp(x)]), numbered, (1, 2, 4, 8), overlap)
    result = tvm.runtime.tensor(np.zeros(extent, "float32"))
    built(kernel)(tvm.runtime.tensor(np.ones(extent, "float32")), result)
    assert result.numpy().tolist() == tiles


@pytest.mark.parametrize("sizes", [(1, 2, 4, 8), (3, 4), (2,)])
@pytest.mark.parametrize("overlap", [0, 1, 2, 100])
def test_the_tiles_that_run_are_those_that_are_counted(sizes: tuple[int, ...], overlap: int) -> None:
    x = te.placeholder((Var("n", "int64"),), name="x")
    run = built(tiled(te.create_prim_func([x, topi.exp(x)]), numbered, sizes, overlap))
    for extent in range(min(sizes), 40):
        result = tvm.runtime.tensor(np.zeros(extent, "float32"))
        run(tvm.runtime.tensor(np.ones(extent, "float32")), result)
        ran = Counter(map(int, result.numpy()))
        # Of tiles that overlap fewer rows are left.
        assert tile_counts(extent, sizes, overlap) == {size: -(-rows // size) for size, rows in ran.items()}


def test_rows_of_several_places_are_moved_together() -> None:
    """Three places of an axis are one row: where patches of images were joined."""
    n = Var("n", "int64")
    x = te.placeholder((n * 3, tirx.const(4, "int64")), name="x")
    computed = te.create_prim_func([x, topi.exp(x)])
    # As Relax calls it: the extent does not follow from its multiple.
    given = PrimFunc([computed.params[0], n, computed.params[1]], computed.body, computed.ret_type, computed.attrs)
    run = built(tiled(given, lambda each: each, overlap=1))
    for extent in range(1, MOST + 1):
        a = np.random.default_rng(extent).standard_normal((extent * 3, 4)).astype("float32")
        result = tvm.runtime.tensor(np.full(a.shape, np.nan, "float32"))
        run(tvm.runtime.tensor(a), extent, result)
        np.testing.assert_allclose(result.numpy(), np.exp(a), rtol=1e-5)


@pytest.mark.parametrize("sizes", [(1, 2, 4), (3, 5)])
def test_any_number_of_rows_of_any_number_of_samples_is_computed(sizes: tuple[int, ...]) -> None:
    samples, n = Var("samples", "int64"), Var("n", "int64")
    x, w = te.placeholder((samples, n, 8), name="x"), te.placeholder((8, 16), name="w")
    k = te.reduce_axis((0, 8), name="k")
    result = te.compute((samples, n, 16), lambda s, i, j: te.sum(x[s, i, k] * w[k, j], axis=k))
    run = built(tiled(te.create_prim_func([x, w, topi.nn.relu(result)]), lambda each: each, sizes, overlap=1))
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((8, 16)).astype("float32")
    for shape in ((1, 3), (2, 4), (5, 11), (3, 7)):
        rows = generator.standard_normal((*shape, 8)).astype("float32")
        result = tvm.runtime.tensor(np.full((*shape, 16), np.nan, "float32"))
        run(*map(tvm.runtime.tensor, (rows, weights)), result)
        np.testing.assert_allclose(result.numpy(), np.maximum(rows @ weights, 0), rtol=1e-5, atol=1e-6)


def marked(lanes: int) -> Callable[[Any], Any]:
    """A schedule that packs the weight for so many lanes."""

    def schedule(each: Any) -> Any:
        made = Schedule(tvm.IRModule({"main": each}))
        block = made.get_sblock("T_matmul")
        copy = made.cache_read(block, 1, "global")
        made.transform_layout(block, ("read", 1), lambda k, j: (j // lanes, k, j % lanes))
        made.annotate(copy, "meta_schedule.layout_rewrite_preproc", True)
        return made.mod["main"]

    return schedule


def test_a_kernel_without_a_schedule_reads_the_weights_of_the_others() -> None:
    def schedule(each: Any) -> Any:
        return each if int(each.params[0].ty.shape[0]) == 1 else marked(4)(each)

    kernel = tiled(product(), schedule)
    assert "* w[" not in kernel.script()
    run = built(kernel)
    for extent in (1, 3, 7):
        check_product(run, extent)


def in_overlapping_tiles(each: Any) -> Any:
    """A kernel that reads the weight in tiles of 16 of its 20 columns: the second one begins within the first."""
    rewritten = with_overlapping_tiles(tvm.IRModule({"main": each}), ((1, 16),))
    assert rewritten is not None
    return with_plain_weights(rewritten["main"], each)


def test_a_kernel_without_a_schedule_cannot_read_weights_in_overlapping_tiles() -> None:
    run = built(tiled(product(20), in_overlapping_tiles))
    for extent in (1, 3, 7):
        check_product(run, extent, 20)

    def schedule(each: Any) -> Any:
        return each if int(each.params[0].ty.shape[0]) == 1 else in_overlapping_tiles(each)

    with pytest.raises(LayoutMismatchError, match="the kernel of 1 rows: it wants w as it comes"):
        tiled(product(20), schedule)


def test_kernels_with_different_layouts_of_a_weight_are_refused() -> None:
    kernel = product()

    alike = tiled(kernel, marked(4))
    assert str(alike).count("layout_rewrite_preproc") == 1
    schedules = {1: marked(8), 2: marked(4), 4: marked(8)}
    with pytest.raises(LayoutMismatchError, match="the kernel of 2 rows: it wants w in another layout"):
        tiled(kernel, lambda each: schedules[int(each.params[0].ty.shape[0])](each))


def test_the_default_schedule_keeps_the_result() -> None:
    n = Var("n", "int64")
    x = te.placeholder((n, 8), name="x")
    kernel = te.create_prim_func([x, topi.nn.softmax(topi.matmul(x, x, transp_b=True), axis=-1)])
    scheduled = default_schedule(kernel)
    few, many = scheduled.script().split("else:")
    assert "parallel" in many
    assert "parallel" not in few
    runs = [built(each) for each in (kernel, scheduled)]
    for extent in (1, 5, 15, 16, 40):
        a = np.random.default_rng(extent).standard_normal((extent, 8)).astype("float32")
        results = [tvm.runtime.tensor(np.zeros((extent, extent), "float32")) for _ in range(2)]
        for run, result in zip(runs, results, strict=True):
            run(tvm.runtime.tensor(a), result)
        np.testing.assert_allclose(results[1].numpy(), results[0].numpy(), rtol=1e-5)


def test_the_default_schedule_keeps_the_result_over_two_extents() -> None:
    n, m = Var("n", "int64"), Var("m", "int64")
    x, y = te.placeholder((n, 8), name="x"), te.placeholder((m, 8), name="y")
    kernel = te.create_prim_func([x, y, topi.nn.softmax(topi.matmul(x, y, transp_b=True), axis=-1)])
    scheduled = default_schedule(kernel)
    assert "parallel" in scheduled.script()
    runs = [built(each) for each in (kernel, scheduled)]
    for shape in ((1, 5), (3, 5), (4, 4), (20, 3)):
        generator = np.random.default_rng(0)
        arrays = [tvm.runtime.tensor(generator.standard_normal((extent, 8)).astype("float32")) for extent in shape]
        results = [tvm.runtime.tensor(np.zeros(shape, "float32")) for _ in range(2)]
        for run, result in zip(runs, results, strict=True):
            run(*arrays, result)
        np.testing.assert_allclose(results[1].numpy(), results[0].numpy(), rtol=1e-5)
