"""Divisions by constants that are products in the machine code, and those that must stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.targets import parse_target, resolve_target


def built(value: Callable[[Any], Any], dtype: str = "float32", out: str | None = None, lanes: int = 16) -> Any:
    """A kernel of 64 elements, some lanes at a time: its machine code and its result for -3, -2.9, ..."""
    use_kernel_passes()
    a = te.placeholder((64,), name="A", dtype=dtype)
    b = te.compute((64,), lambda i: value(a[i]), name="B")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, b]))
    (loop,) = schedule.get_loops(schedule.get_sblock("B"))
    if lanes > 1:
        schedule.vectorize(schedule.split(loop, [None, lanes])[1])
    kernel = tvm.tirx.build(schedule.mod, target=parse_target(resolve_target("native", 1)))
    given = (np.arange(64) / 10 - 3).astype(dtype)
    result = tvm.runtime.tensor(np.zeros(64, out or dtype))
    kernel["main"](tvm.runtime.tensor(given), result)
    return kernel.inspect_source("ll"), given, result.numpy()


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_division_by_a_constant_is_a_product(dtype: str, lanes: int) -> None:
    six = tirx.const(6.0, dtype)
    code, given, result = built(lambda x: (x + tirx.const(3.0, dtype)) * x / six, dtype, lanes=lanes)
    assert "fdiv" not in code
    np.testing.assert_allclose(result, (given + 3) * given / 6, rtol=4 * np.finfo(dtype).eps, atol=1e-37)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (lambda x: tirx.const(6.0, "float32") / (x + tirx.const(10.0, "float32")), lambda x: 6 / (x + 10)),
        (lambda x: x / tirx.const(1e-40, "float32"), lambda x: x / np.float32(1e-40)),
        (lambda x: x / tirx.const(float("inf"), "float32"), np.zeros_like),
    ],
    ids=["another divisor", "no normal reciprocal", "infinity"],
)
def test_other_divisions_stay(value: Callable[[Any], Any], expected: Callable[[Any], Any]) -> None:
    code, given, result = built(value)
    assert "fdiv" in code
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(result, expected(given), rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "out"),
    [
        (lambda x: tirx.floor(x / tirx.const(0.1, "float32")), "float32"),
        (lambda x: tirx.round(x / tirx.const(0.1, "float32")), "float32"),
        (lambda x: (x / tirx.const(0.1, "float32")).astype("int32"), "int32"),
    ],
    ids=["floor", "round", "cast"],
)
def test_a_kernel_that_rounds_keeps_its_divisions(value: Callable[[Any], Any], out: str) -> None:
    assert "fdiv" in built(value, out=out)[0]
