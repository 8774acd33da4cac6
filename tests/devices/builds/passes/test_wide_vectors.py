"""Vector loops that LLVM would have to widen, and epilogues that read other vectors than the sums were written in."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import te

from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.targets import parse_target, resolve_target

ROWS, TERMS = 4, 8


def scheduled(columns: int, lanes: int, epilogue: int) -> tvm.s_tir.Schedule:
    """``a @ b + bias``: sums in vectors of ``lanes``, an epilogue in vectors of ``epilogue`` over the fused rows."""
    a, b = te.placeholder((ROWS, TERMS), name="A"), te.placeholder((TERMS, columns), name="B")
    bias = te.placeholder((columns,), name="bias")
    k = te.reduce_axis((0, TERMS), name="k")
    sums = te.compute((ROWS, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="sums")
    out = te.compute((ROWS, columns), lambda i, j: sums[i, j] + bias[j], name="out")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, b, bias, out]))
    block = schedule.get_sblock("sums")
    i, j, k = schedule.get_loops(block)
    outer, inner = schedule.split(j, [None, lanes])
    schedule.reorder(k, i, outer, inner)
    schedule.vectorize(inner)
    schedule.decompose_reduction(block, k)
    fused = schedule.fuse(*schedule.get_loops(schedule.get_sblock("out")))
    schedule.vectorize(schedule.split(fused, [None, epilogue])[1])
    return schedule


@pytest.mark.parametrize(
    ("columns", "lanes", "epilogue", "widest"),
    [
        (24, 24, 48, 16),  # three vectors of 8 in the sums, of 16 in the epilogue
        (24, 12, 48, 12),  # the epilogue reads what the sums are
        (20, 20, 20, 4),
        (24, 8, 48, 16),
        (64, 16, 64, 64),  # LLVM keeps it in four registers
        (64, 64, 64, 64),
        (16, 1, 16, 16),  # sums one by one are no reason for an epilogue one by one
    ],
)
def test_vectors_are_those_that_llvm_keeps_in_registers(columns: int, lanes: int, epilogue: int, widest: int) -> None:
    use_kernel_passes()
    schedule = scheduled(columns, lanes, epilogue)
    kernel = tvm.tirx.build(schedule.mod, target=parse_target(resolve_target("native", 2)))
    found = {int(n) for n in re.findall(r"<(\d+) x float>", kernel.inspect_source("ll"))}
    assert max(found) == widest
    rng = np.random.default_rng(0)
    a, b, bias = (rng.random(shape, dtype=np.float32) for shape in ((ROWS, TERMS), (TERMS, columns), (columns,)))
    result = tvm.runtime.tensor(np.zeros((ROWS, columns), np.float32))
    kernel["main"](*(tvm.runtime.tensor(array) for array in (a, b, bias)), result)
    np.testing.assert_allclose(result.numpy(), a @ b + bias, rtol=1e-5)
