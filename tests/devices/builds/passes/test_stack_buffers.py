"""Small buffers of CPU kernels: on the stack, where the runtime is not called for them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.builds.passes.stack_buffers import MOST_BYTES
from devices.targets import parse_target, resolve_target
from tests.helpers.workloads import TARGETS


@pytest.mark.parametrize(("columns", "on_stack"), [(256, True), (MOST_BYTES // 4, True), (MOST_BYTES // 4 + 16, False)])
@pytest.mark.parametrize("scope", ["local", "global"])
def test_buffers_up_to_a_size_are_on_the_stack(columns: int, on_stack: bool, scope: str) -> None:
    use_kernel_passes()
    a = te.placeholder((8, columns), name="A")
    doubled = te.compute((8, columns), lambda i, j: a[i, j] * 2, name="B")
    out = te.compute((8, columns), lambda i, j: doubled[i, columns - 1 - j] + 1, name="C")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, out]))
    row, _ = schedule.get_loops(schedule.get_sblock("C"))
    schedule.parallel(row)
    schedule.compute_at(schedule.get_sblock("B"), row)
    schedule.set_scope(schedule.get_sblock("B"), 0, scope)
    kernel = tvm.tirx.build(schedule.mod, target=parse_target(resolve_target("native", 1)))
    assert ("TVMBackendAllocWorkspace" not in kernel.inspect_source("ll")) == on_stack
    values = np.arange(8 * columns, dtype=np.float32).reshape(8, columns)
    given, result = tvm.runtime.tensor(values), tvm.runtime.tensor(np.zeros_like(values))
    kernel["main"](given, result)
    np.testing.assert_array_equal(result.numpy(), values[:, ::-1] * 2 + 1)


def test_memory_of_a_gpu_is_never_on_the_stack_of_its_host() -> None:
    use_kernel_passes()
    a = te.placeholder((64,), name="A")
    doubled = te.compute((64,), lambda i: a[i] * 2, name="B")
    out = te.compute((64,), lambda i: doubled[63 - i] + 1, name="C")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, out]))
    for name in ("B", "C"):  # two kernels, and a buffer between them
        (loop,) = schedule.get_loops(schedule.get_sblock(name))
        schedule.bind(loop, "threadIdx.x")
    kernel = tvm.tirx.build(schedule.mod, target=parse_target(resolve_target(TARGETS["sm_90"])))
    assert "TVMBackendAllocWorkspace" in kernel.inspect_source("ll")
