"""Parallel loops of kernels in which one thread has work."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.targets import parse_target, resolve_target


@pytest.mark.parametrize(("cores", "rows"), [(1, 6), (2, 6), (2, 1)])
def test_a_loop_is_parallel_where_there_is_work_for_more_than_one_core(cores: int, rows: int) -> None:
    use_kernel_passes()
    a = te.placeholder((rows, 16), name="A")
    out = te.compute((rows, 16), lambda i, j: a[i, j] + 1, name="B")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, out]))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("B"))[0])
    kernel = tvm.tirx.build(schedule.mod, target=parse_target(resolve_target("native", cores)))
    assert ("TVMBackendParallelLaunch" in kernel.inspect_source("ll")) == (cores > 1 and rows > 1)
    values = np.arange(16 * rows, dtype=np.float32).reshape(rows, 16)
    given, result = tvm.runtime.tensor(values), tvm.runtime.tensor(np.zeros_like(values))
    kernel["main"](given, result)
    np.testing.assert_array_equal(result.numpy(), values + 1)
