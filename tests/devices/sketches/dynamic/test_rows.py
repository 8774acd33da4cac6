"""Rows of kernels over a dynamic extent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import te, topi
from tvm.s_tir import SBlockRealize
from tvm.tirx import For, IntImm, PrimFunc, Var
from tvm_ffi import structural_equal, structural_map

from devices.sketches.dynamic.rows import Rows, dynamic_extents, is_dynamic, rows_of, specialized
from devices.sketches.dynamic.substitution import on_tensors

Compute = Callable[[Any], tuple[list[te.Tensor], te.Tensor]]


def product(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x, w = te.placeholder((n, 8), name="x"), te.placeholder((8, 16), name="w")
    return [x, w], topi.nn.relu(topi.matmul(x, w))


def transposed(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((1, n, 4, 8), name="x")
    return [x], topi.transpose(x, (0, 2, 1, 3))


def joined(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n * 5, 8), name="x")
    return [x], topi.exp(x)


def looked_up(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    table, places = te.placeholder((50, 8), name="table"), te.placeholder((n,), dtype="int64", name="places")
    return [table, places], te.compute((n, 8), lambda i, j: table[places[i], j])


def pooled(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n, 6, 6, 3), name="x")
    return [x], topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "max", layout="NHWC")


ROWS: list[tuple[Compute, dict[int, Rows]]] = [
    (product, {0: Rows(0, 1), 2: Rows(0, 1)}),
    (transposed, {0: Rows(1, 1), 1: Rows(2, 1)}),
    (joined, {0: Rows(0, 5), 1: Rows(0, 5)}),
    (looked_up, {1: Rows(0, 1), 2: Rows(0, 1)}),
    (pooled, {0: Rows(0, 1), 1: Rows(0, 1)}),
]


def along_rows(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n, 8), name="x")
    return [x], topi.nn.softmax(x, axis=0)


def summed(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n, 8), name="x")
    return [x], topi.sum(x, axis=0)


def of_the_next(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n, 8), name="x")
    return [x], te.compute((n, 8), lambda i, j: x[te.min(i + 1, n - 1), j])


def times_its_number(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n, 8), name="x")
    return [x], te.compute((n, 8), lambda i, j: x[i, j] * i.astype("float32"))


def of_the_extent(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n, 8), name="x")
    return [x], te.compute((n, 8), lambda i, j: x[i, j] / n.astype("float32"))


def of_all_pairs(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n, 8), name="x")
    return [x], topi.matmul(x, x, transp_b=True)


def repeated(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n, 8), name="x")
    return [x], te.compute((n * 2, 8), lambda i, j: x[i // 2, j])


def reversed_rows(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n, 8), name="x")
    return [x], te.compute((n, 8), lambda i, j: x[n - 1 - i, j])


def of_the_first_half(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    """Two rows of the argument belong to one of the result, and not those at its place are read."""
    x = te.placeholder((n * 2, 8), name="x")
    return [x], te.compute((n, 8), lambda i, j: x[i, j])


def of_places(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    """The rows of the table are dynamic too, and read at any place."""
    table, places = te.placeholder((n, 8), name="table"), te.placeholder((n,), dtype="int64", name="places")
    return [table, places], te.compute((n, 8), lambda i, j: table[places[i], j])


def kernel(compute: Compute, n: Any) -> Any:
    inputs, result = compute(n)
    return te.create_prim_func([*inputs, result])


@pytest.mark.parametrize(("compute", "expected"), ROWS)
def test_rows_are_found(compute: Compute, expected: dict[int, Rows]) -> None:
    function = kernel(compute, Var("n", "int64"))
    (extent,) = dynamic_extents(function)
    assert rows_of(function, extent) == expected


@pytest.mark.parametrize(
    "compute",
    [
        along_rows,
        summed,
        of_the_next,
        times_its_number,
        of_the_extent,
        of_all_pairs,
        repeated,
        reversed_rows,
        of_places,
        of_the_first_half,
    ],
)
def test_rows_that_depend_on_others_are_no_rows(compute: Compute) -> None:
    function = kernel(compute, Var("n", "int64"))
    (extent,) = dynamic_extents(function)
    assert rows_of(function, extent) is None


@pytest.mark.parametrize("compute", [each for each, _ in ROWS])
def test_a_kernel_for_a_fixed_extent_is_that_of_fixed_shapes(compute: Compute) -> None:
    from tvm.tirx import const

    function = kernel(compute, Var("n", "int64"))
    (extent,) = dynamic_extents(function)
    assert structural_equal(specialized(function, {extent: 6}), kernel(compute, const(6, "int64")))


def test_fixed_shapes_have_no_dynamic_extent() -> None:
    assert dynamic_extents(kernel(product, 4)) == ()


def test_a_kernel_has_rows_along_each_of_two_extents() -> None:
    n, m = Var("n", "int64"), Var("m", "int64")
    x = te.placeholder((n, m), name="x")
    function = te.create_prim_func([x, topi.exp(x)])
    assert [each.name for each in dynamic_extents(function)] == ["n", "m"]
    assert [rows_of(function, each) for each in dynamic_extents(function)] == [
        {0: Rows(0, 1), 1: Rows(0, 1)},
        {0: Rows(1, 1), 1: Rows(1, 1)},
    ]


def test_a_block_that_does_not_run_everywhere_has_no_rows() -> None:
    """A tile would leave its own last row out."""
    function = kernel(joined_once, Var("n", "int64"))
    (extent,) = dynamic_extents(function)
    assert rows_of(function, extent) is not None

    def with_predicate(realize: SBlockRealize) -> SBlockRealize:
        if not realize.iter_values:
            return realize
        return SBlockRealize(realize.iter_values, realize.iter_values[0] < extent - 1, realize.block)

    body = structural_map(function.body, (SBlockRealize, with_predicate))
    assert rows_of(PrimFunc(function.params, body, function.ret_type, function.attrs), extent) is None

    def shorter(loop: For) -> For:
        return (
            loop if isinstance(loop.extent, IntImm) else For(loop.loop_var, loop.min, extent - 1, loop.kind, loop.body)
        )

    body = structural_map(function.body, (For, shorter))
    assert rows_of(PrimFunc(function.params, body, function.ret_type, function.attrs), extent) is None


def joined_once(n: Any) -> tuple[list[te.Tensor], te.Tensor]:
    x = te.placeholder((n, 8), name="x")
    return [x], topi.exp(x)


@pytest.mark.parametrize("blocks", [1, 2])
def test_rows_that_are_computed_from_what_they_were_are_no_rows(blocks: int) -> None:
    """Two tiles may compute the same row."""
    x = te.placeholder((Var("n", "int64"), 8), name="x")
    result = topi.exp(x) if blocks == 1 else topi.exp(topi.nn.relu(x))
    apart = te.create_prim_func([x, result])
    (extent,) = dynamic_extents(apart)
    assert rows_of(apart, extent) is not None
    given, made = apart.params
    assert (
        rows_of(PrimFunc([given], on_tensors(apart.body, {made: given}), apart.ret_type, apart.attrs), extent) is None
    )


def test_a_kernel_of_the_extent_itself_is_dynamic() -> None:
    n = Var("n", "int64")
    given = te.create_prim_func([te.placeholder((4,), name="x"), te.compute((4,), lambda i: i.astype("float32"))])
    assert not is_dynamic(given)
    assert is_dynamic(PrimFunc([n, *given.params], given.body, given.ret_type, given.attrs))
