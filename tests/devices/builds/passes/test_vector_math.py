"""exp and erf as vector arithmetic: their numbers, over all that float32 holds, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from scipy import special
from tvm import te

from devices.builds.passes.vector_math import use_vector_math
from devices.targets import parse_target, resolve_target

Floats = NDArray[np.floating[Any]]
LANES = 16
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 88.72283, 88.7229, -87.3365, -87.4, 1e-30, -1e-30, 3e38, -3e38]


def computed(function: Callable[[Any], Any], values: Floats, lanes: int = LANES) -> Floats:
    """``function`` of each value by a kernel of ``lanes`` values at a time."""
    use_vector_math()
    a = te.placeholder(values.shape, str(values.dtype), name="A")
    schedule = tvm.s_tir.Schedule(
        te.create_prim_func([a, te.compute(values.shape, lambda i: function(a[i]), name="B")])
    )
    if lanes > 1:
        _, inner = schedule.split(schedule.get_loops(schedule.get_sblock("B"))[0], [None, lanes])
        schedule.vectorize(inner)
    kernel = tvm.tirx.build(schedule.mod, target=parse_target(resolve_target("native", 1)))
    given, result = tvm.runtime.tensor(values), tvm.runtime.tensor(np.zeros_like(values))
    kernel["main"](given, result)
    output: Floats = result.numpy()
    return output


def sweep(low: float, high: float, dtype: str = "float32") -> Floats:
    values = np.concatenate([np.linspace(low, high, 200_000), SPECIAL])
    with np.errstate(over="ignore"):
        return values[len(values) % LANES :].astype(dtype)


@pytest.mark.parametrize("lanes", [1, LANES])
def test_exp(lanes: int) -> None:
    x = sweep(-110, 100)
    y = computed(tvm.tirx.exp, x, lanes)
    with np.errstate(over="ignore", under="ignore"):
        exact = np.exp(x.astype(np.float64))
    in_range = (exact > 1.18e-38) & (exact < 3.4e38)
    np.testing.assert_allclose(y[in_range], exact[in_range], rtol=2e-7)
    assert (y[exact > 3.41e38] == np.inf).all()
    assert (y[exact < 1.17e-38] == 0).all()
    assert np.isnan(y[np.isnan(x)]).all()


def test_erf() -> None:
    x = sweep(-6, 6)
    y = computed(tvm.tirx.erf, x)
    np.testing.assert_allclose(y, special.erf(x.astype(np.float64)), atol=6e-7)


@pytest.mark.parametrize(
    ("function", "exact"),
    [(tvm.tirx.sigmoid, special.expit), (tvm.tirx.tanh, np.tanh)],
    ids=["sigmoid", "tanh"],
)
def test_what_is_made_of_exp(function: Callable[[Any], Any], exact: Callable[[Floats], Floats]) -> None:
    x = sweep(-100, 100)
    np.testing.assert_allclose(computed(function, x), exact(x.astype(np.float64)), atol=2e-7)


def test_a_sigmoid_selects_once() -> None:
    """It compares with the bounds of its exp alone. exp itself selects what is beyond them too. Both do so in as many
    vectors as the processor has for them."""
    use_vector_math()

    def comparisons(function: Callable[[Any], Any]) -> int:
        a = te.placeholder((LANES,), name="A")
        kernel = te.create_prim_func([a, te.compute((LANES,), lambda i: function(a[i]))])
        built = tvm.tirx.build(kernel, target=parse_target(resolve_target("native", 1)))
        return int(built.inspect_source("ll").count(" fcmp "))

    assert 0 < 3 * comparisons(tvm.tirx.sigmoid) == 2 * comparisons(tvm.tirx.exp)


def test_half_precision_is_computed_in_float32() -> None:
    x = sweep(-15, 10, "float16")
    with np.errstate(over="ignore"):
        exact = np.exp(x.astype(np.float64)).astype(np.float16)
    np.testing.assert_allclose(computed(tvm.tirx.exp, x), exact, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    ("function", "exact"), [(tvm.tirx.exp, np.exp), (tvm.tirx.sigmoid, special.expit)], ids=["exp", "sigmoid"]
)
def test_double_precision_is_left_alone(function: Callable[[Any], Any], exact: Callable[[Floats], Floats]) -> None:
    x = np.linspace(-5, 5, 160)
    np.testing.assert_allclose(computed(function, x), exact(x), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("exponent", [2.0, 3.0, 4.0, 5.0])
@pytest.mark.parametrize("lanes", [1, LANES])
def test_powers(dtype: str, exponent: float, lanes: int) -> None:
    x = sweep(-6, 6, dtype)
    y = computed(lambda value: tvm.tirx.power(value, tvm.tirx.const(exponent, dtype)), x, lanes)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), exponent).astype(dtype)
    np.testing.assert_allclose(y, exact, rtol=1e-3 if dtype == "float16" else 5e-7)
    assert (np.signbit(y) == np.signbit(exact))[~np.isnan(exact)].all()


def test_a_power_that_is_a_product_calls_nothing() -> None:
    use_vector_math()
    a = te.placeholder((LANES,), name="A")
    schedule = tvm.s_tir.Schedule(
        te.create_prim_func([a, te.compute((LANES,), lambda i: tvm.tirx.power(a[i], tvm.tirx.const(3.0, "float32")))])
    )
    kernel = tvm.tirx.build(schedule.mod, target=parse_target(resolve_target("native", 1)))
    assert "pow" not in kernel.inspect_source("ll").replace("T_power", "")
