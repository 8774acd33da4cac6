"""The rule for kernels that only move rows: where it applies, and what its kernels compute."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, compile, runtime, te, topi
from tvm.target import Target

from devices.sketches.rules.row_copies import row_copies
from devices.targets import parse_target, resolve_target

_CPU = {"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu"}
CPU, ONE_CORE = (Target({**_CPU, "num-cores": cores}) for cores in (2, 1))
CUDA = Target({"kind": "cuda", "arch": "sm_90"})


def _module(*tensors: te.Tensor) -> IRModule:
    return IRModule({"main": te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")})


def _look_up() -> IRModule:
    table, places = te.placeholder((20, 96), name="table"), te.placeholder((3, 4), "int64", name="places")
    return _module(table, places, topi.take(table, places, axis=0, mode="clip"))


def _slice() -> IRModule:
    x = te.placeholder((6, 128), name="x")
    return _module(x, topi.strided_slice(x, [1, 16], [5, 112], [1, 1]))


def _transposed() -> IRModule:
    x = te.placeholder((64, 64), name="x")
    return _module(x, topi.transpose(x))


def _every_other() -> IRModule:
    x = te.placeholder((4, 256), name="x")
    return _module(x, topi.strided_slice(x, [0, 0], [4, 256], [1, 2]))


def _short_rows() -> IRModule:
    x = te.placeholder((64, 64), name="x")
    return _module(x, topi.strided_slice(x, [0, 0], [64, 16], [1, 1]))


def _sum() -> IRModule:
    x = te.placeholder((64, 64), name="x")
    return _module(x, topi.add(x, x))


def test_rows_are_copied_in_parallel() -> None:
    (looked_up,), (sliced,) = row_copies(_look_up(), CPU), row_copies(_slice(), CPU)
    assert "T.parallel(12)" in looked_up.mod.script()
    (alone,) = row_copies(_look_up(), ONE_CORE)
    assert "T.parallel" not in alone.mod.script()
    target = parse_target(resolve_target("native", 1))
    rng = np.random.default_rng(3)
    table, places = rng.standard_normal((20, 96), dtype=np.float32), rng.integers(0, 20, (3, 4))
    result = runtime.tensor(np.zeros((3, 4, 96), np.float32))
    compile(looked_up.mod, target=target)["main"](runtime.tensor(table), runtime.tensor(places), result)
    np.testing.assert_array_equal(result.numpy(), table[places])
    x, part = rng.standard_normal((6, 128), dtype=np.float32), runtime.tensor(np.zeros((4, 96), np.float32))
    compile(sliced.mod, target=target)["main"](runtime.tensor(x), part)
    np.testing.assert_array_equal(part.numpy(), x[1:5, 16:112])


@pytest.mark.parametrize("module", [_transposed(), _every_other(), _short_rows(), _sum()])
def test_what_is_not_side_by_side_is_no_row(module: IRModule) -> None:
    assert row_copies(module, CPU) == []


def test_it_is_a_rule_for_cpus() -> None:
    assert row_copies(_look_up(), CUDA) == []
