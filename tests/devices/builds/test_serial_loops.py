"""Parallel loops of kernels for one core."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from devices.builds.kernel_passes import use_kernel_passes
from devices.targets import parse_target, resolve_target


@pytest.mark.parametrize("cores", [1, 2])
def test_a_loop_is_parallel_where_there_is_more_than_one_core(cores: int) -> None:
    use_kernel_passes()
    a = te.placeholder((6, 16), name="A")
    out = te.compute((6, 16), lambda i, j: a[i, j] + 1, name="B")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, out]))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("B"))[0])
    kernel = tvm.tirx.build(schedule.mod, target=parse_target(resolve_target("native", cores)))
    assert ("TVMBackendParallelLaunch" in kernel.inspect_source("ll")) == (cores > 1)
    values = np.arange(96, dtype=np.float32).reshape(6, 16)
    given, result = tvm.runtime.tensor(values), tvm.runtime.tensor(np.zeros_like(values))
    kernel["main"](given, result)
    np.testing.assert_array_equal(result.numpy(), values + 1)
