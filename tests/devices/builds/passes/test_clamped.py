"""The operator of quantised kernels that keeps a number between two bounds, as it is built for this machine."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from devices.builds.passes.kernel_passes import WITH_KERNEL_PASSES
from devices.sketches.byte_operators import clamped
from devices.targets import parse_target, resolve_target


def built(depth: int, size: int) -> tvm.runtime.Module:
    """A kernel of ``depth`` steps around each other: twice the number, between -100 and 100, less one."""
    x = te.placeholder((size,), name="x")

    def steps(i: tirx.Var) -> tirx.PrimExpr:
        value = x[i]
        for _ in range(depth):
            value = clamped(value * 2.0, -100.0, 100.0) - 1.0
        return value

    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, te.compute((size,), steps, name="y")]))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("y"))[-1])
    target = parse_target(resolve_target("native", 1))
    return tvm.tirx.build(schedule.mod, target=target, pipeline=WITH_KERNEL_PASSES)


@pytest.mark.parametrize("size", [1, 4, 12, 16])
def test_numbers_stay_between_the_bounds_and_nan_becomes_the_lower_one(size: int) -> None:
    x = np.resize(np.array([np.nan, np.inf, -np.inf, -0.0, 3.0, 49.99, 51.0, -60.0], np.float32), size)
    given, result = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros(size, np.float32))
    built(1, size)["main"](given, result)
    expected = np.where(np.isnan(x), -100.0, np.clip(2 * x, -100.0, 100.0)) - 1.0
    np.testing.assert_array_equal(result.numpy(), expected.astype(np.float32))


def test_many_around_each_other_are_built_in_time() -> None:
    """Written as selects, 24 of them were 3^24 copies of the innermost: five, in a quantised GELU, took minutes."""
    given, result = tvm.runtime.tensor(np.full(8, 1.5, np.float32)), tvm.runtime.tensor(np.zeros(8, np.float32))
    built(24, 8)["main"](given, result)
    value = np.float32(1.5)
    for _ in range(24):
        value = np.clip(value * 2, -100, 100) - 1
    np.testing.assert_array_equal(result.numpy(), np.full(8, value))
