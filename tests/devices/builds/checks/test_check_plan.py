"""Wrong kernels must show, and right ones must not, whatever the types are and however long the sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi

from devices.builds.checks.check_plan import plan_of
from devices.client.output_check import all_finite, disagreement
from devices.protocol import CheckPlan, TensorSpec
from devices.targets import parse_target
from devices.timing.arguments import Array, numpy_dtype
from devices.timing.checked_inputs import make_checked_inputs
from tests.helpers.kernels import native_target
from tests.helpers.mutants import MISTAKES, ORDERS, mean, product, softmax, variance
from tests.helpers.programs import make_function

Make = Callable[[str], list[te.Tensor]]

PRODUCTS = [
    (64, "float16", "float16", "gelu"),
    (4096, "float16", "float16", "none"),
    (65536, "float16", "float32", "relu"),
    (4096, "bfloat16", "float32", "gelu"),
    (65536, "float32", "float32", "gelu"),
    (4096, "int8", "int32", "none"),
]
# A single one of the inner terms of these is next to nothing on some rows, and there are but twelve.
ROWS_OF: list[tuple[Callable[[int, str, str, str], list[te.Tensor]], int, str, str]] = [
    (softmax, 4096, "float16", "float32"),
    (softmax, 768, "bfloat16", "float32"),
    (variance, 768, "float16", "float16"),
    (variance, 4096, "float32", "float32"),
    (mean, 65536, "float16", "float32"),
]


def specs_of(tensors: list[te.Tensor]) -> list[TensorSpec]:
    return [TensorSpec(tuple(int(n) for n in tensor.shape), str(tensor.dtype)) for tensor in tensors]


def passing(make: Make, ways: tuple[str, ...]) -> list[str]:
    """Those of the kernels that are taken for right."""
    functions = {how: make_function(make(how)) for how in ("right", *ways)}
    named = {f"way_{at}": f.with_attr("global_symbol", f"way_{at}") for at, f in enumerate(functions.values())}
    library: Any = tvm.tirx.build(tvm.IRModule(named), target=parse_target(native_target()))
    plan, specs = plan_of(functions["right"]), specs_of(make("right"))
    arrays = make_checked_inputs("t", specs, (len(specs) - 1,), False, plan)

    def outputs(name: str) -> list[Array]:
        arguments = [tvm.runtime.tensor(array) for array in arrays]
        library[name](*arguments)
        return [arguments[-1].numpy().astype(numpy_dtype(specs[-1].dtype), copy=False)]

    oracle, *others = (outputs(name) for name in named)
    assert all_finite([oracle[0]])
    return [how for how, found in zip(ways, others, strict=True) if not disagreement(oracle, found, plan)]


@pytest.mark.parametrize(("length", "dtype", "sums", "epilogue"), PRODUCTS)
def test_products(length: int, dtype: str, sums: str, epilogue: str) -> None:
    assert passing(lambda how: product(length, dtype, sums, epilogue, how), ORDERS + MISTAKES) == list(ORDERS)


@pytest.mark.parametrize(("kernel", "length", "dtype", "sums"), ROWS_OF)
def test_rows(kernel: Callable[..., list[te.Tensor]], length: int, dtype: str, sums: str) -> None:
    mistakes = tuple(mistake for mistake in MISTAKES if mistake != "inner missing")
    assert passing(lambda how: kernel(length, dtype, sums, how), ORDERS + mistakes) == list(ORDERS)


def plan(*tensors: te.Tensor) -> CheckPlan:
    return plan_of(make_function(list(tensors)))


def tensor(shape: tuple[int, ...], dtype: str = "float32", name: str = "x") -> te.Tensor:
    return te.placeholder(shape, dtype, name=name)


def test_sums_of_products_are_exact_and_others_are_not() -> None:
    x, y = tensor((8, 64), "float16"), tensor((64, 8), "float16", "y")
    half = plan(x, y, topi.nn.relu(topi.matmul(x, y)))
    assert (half.precision, half.exact, half.sums, half.rounds) == ("float16", True, True, False)
    assert [draw.steps for draw in half.draws[:2]] == [1, 1]
    assert plan(x, topi.nn.softmax(x)).exact is False
    assert plan(x, topi.sum(topi.multiply(x, x), axis=1)).exact is False
    assert plan(x, topi.max(x, axis=1)) == plan(x, topi.max(x, axis=1))
    assert plan(x, topi.max(x, axis=1)).sums is False
    assert plan(x, topi.max(x, axis=1)).draws[0].ends == (1,)


def test_integers_are_indices_divisors_or_all_that_there_are() -> None:
    table, index = tensor((50, 16)), tensor((4,), "int64", "index")
    gathered = plan(table, index, topi.take(table, index, axis=0))
    assert (gathered.draws[1].low, gathered.draws[1].high) == (0, 50)
    moved = plan(table, index, topi.take(table, topi.add(index, tvm.tirx.const(2, "int64")), axis=0))
    assert (moved.draws[1].low, moved.draws[1].high) == (0, 8)
    kept = topi.where(topi.less(index, tvm.tirx.const(0, "int64")), topi.add(index, tvm.tirx.const(50, "int64")), index)
    wrapped = plan(table, index, topi.take(table, kept, axis=0)).draws[1]
    assert (wrapped.low, wrapped.high) == (-50, 50)
    a, b = tensor((8, 8), "int32", "a"), tensor((8, 8), "int32", "b")
    dividend, divisor, _ = plan(a, b, topi.floor_mod(a, b)).draws
    assert (dividend.low, dividend.high) == (1 - 2**31, 2**31)  # the smallest divided by -1 is none of the type
    assert (divisor.low, divisor.high, divisor.zero) == (-(2**31), 2**31, False)
    small = tensor((8, 8), "int8", "small")
    product_of = topi.matmul(topi.cast(small, "int32"), topi.cast(a, "int32"))
    assert (plan(small, a, product_of).draws[0].low, plan(small, a, product_of).draws[0].high) == (-128, 128)


def test_quantisation_makes_integers_of_floats() -> None:
    x = tensor((8, 8))
    assert plan(x, topi.cast(topi.round(topi.add(topi.multiply(x, 20.0), 3.3)), "int8")).rounds
    assert not plan(x, topi.cast(topi.round(topi.multiply(x, 20.0)), "int8")).rounds  # one operation, one result
    assert not plan(x, topi.cast(x, "float16")).rounds


def test_special_numbers_do_not_overflow_between_a_product_and_a_sum() -> None:
    x, scale, y = tensor((8, 8)), tensor((8, 8), name="scale"), tensor((8, 8), name="y")
    largest = float(np.finfo(np.float32).max)
    scaled = plan(x, scale, y, topi.add(topi.multiply(x, scale), y)).specials
    assert 1 < max(draw.limit for draw in scaled) < largest**0.5
    constant = plan(x, y, topi.add(topi.multiply(x, 1e18), y)).specials
    assert 1 < max(draw.limit for draw in constant) < largest / 1e18
    assert max(draw.limit for draw in plan(x, y, topi.add(x, y)).specials) > 3e38  # overflows in one place only


def test_checked_inputs_are_what_the_plan_says() -> None:
    x, y = tensor((8, 65536), "bfloat16"), tensor((65536, 8), "bfloat16", "y")
    made = plan(x, y, topi.matmul(x, y))
    first, second, _ = make_checked_inputs("t", specs_of([x, y, topi.matmul(x, y)]), (2,), False, made)
    values, counts = np.unique(first.astype(np.float32), return_counts=True)
    power = made.draws[0].high
    assert list(values) == [-power, 0, power]
    assert 0.1 < counts[2] / counts.sum() * 2 < 0.15  # the root of 1,024 in 65,536
    assert (second[[0, -1]] != 0).mean() > 0.2
    positive = make_checked_inputs("t", specs_of([x, y, topi.matmul(x, y)]), (2,), True, made)[0]
    assert (positive > 0).all()
