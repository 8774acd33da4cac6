"""Selections of unrolled loops: what is not taken is gone before TVM's passes see it, and all else is as before."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.ir import Call
from tvm.ir.instrument import pass_instrument
from tvm.tirx import BufferStore, Select
from tvm_ffi import structural_equal, structural_walk

from devices.builds.passes import kernel_passes, unrolled_selections
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.targets import NATIVE, parse_target, resolve_target

TARGET = parse_target(resolve_target(NATIVE))
MATRIX = np.array([[1.0, 2.0, 0.0, -1.0], [0.0, 1.0, 1.0, 3.0], [2.0, 0.0, -1.0, 1.0]], np.float32)
ROWS, TERMS, LANES = 3, 4, 16
OURS = {"sequential", "_pipeline", "lower", "narrow_cuda_vectors", "fold_selections"}


def transform(is_intermediate: bool = False) -> tvm.IRModule:
    """``y[i, p, :] = sum_t MATRIX[p, t] * x[i + t - 1, :]`` with zeros before the first row of x. The loop over ``p``
    is unrolled. ``is_intermediate``: the result is ``y + 1``."""
    x = te.placeholder((8, LANES), "float32", name="x")

    def row(i: Any, p: Any, lane: Any) -> Any:
        at = [te.if_then_else(i + t >= 1, x[te.max(i + t - 1, 0), lane], 0.0) for t in range(TERMS)]
        sums = [sum((float(f) * each for f, each in zip(line, at, strict=True) if f), 0.0) for line in MATRIX]
        return Select(p == 0, sums[0], Select(p == 1, sums[1], sums[2]))

    y = te.compute((5, ROWS, LANES), row, name="y")
    outputs = [te.compute((5, ROWS, LANES), lambda *at: y[at] + 1.0, name="z")] if is_intermediate else [y]
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, *outputs]))
    _, points, lanes = schedule.get_loops(schedule.get_sblock("y"))
    schedule.unroll(points)
    schedule.vectorize(lanes)
    return schedule.mod


def expected(x: Any) -> Any:
    padded = np.concatenate([np.zeros((1, LANES), np.float32), x])
    return np.stack([MATRIX @ padded[i : i + TERMS] for i in range(5)])


def built(module: tvm.IRModule, *watch: Any) -> Any:
    use_kernel_passes()
    with tvm.transform.PassContext(instruments=list(watch)):
        return tvm.tirx.build(module, target=TARGET)


def test_kernels_compute_what_they_did() -> None:
    x = np.random.default_rng(0).standard_normal((8, LANES)).astype(np.float32)
    y = tvm.runtime.tensor(np.zeros((5, ROWS, LANES), np.float32))
    built(transform()).main(tvm.runtime.tensor(x), y)
    np.testing.assert_allclose(y.numpy(), expected(x), rtol=1e-5, atol=1e-6)


def test_nothing_is_left_of_selections_and_elements_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, Counter[str]] = {}

    def counted(name: str, module: tvm.IRModule) -> tvm.IRModule:
        found = counts.setdefault(name, Counter())
        for function in module.functions.values():
            walkers = [
                (Select, lambda _: found.update(["selections"])),
                (BufferStore, lambda _: found.update(["stores"])),
                (Call, lambda call: found.update([str(getattr(call.op, "name", ""))])),
            ]
            structural_walk(function.body, walkers)
        return module

    fold = unrolled_selections.fold_selections
    monkeypatch.setattr(
        kernel_passes, "fold_selections", lambda module: counted("after", fold(counted("before", module)))
    )
    built(transform())
    assert counts["before"]["selections"] == 2 * ROWS
    assert counts["after"]["selections"] == 0
    assert counts["after"]["prim.if_then_else"] == 1  # of four terms, three are inside of x for every i
    assert counts["after"]["stores"] == counts["before"]["stores"] == ROWS


def test_a_branch_inside_of_another_stays_there() -> None:
    """It may read what is only there where the outer condition holds."""
    x, index = tirx.decl_buffer((4,), "float32", "x"), tirx.Var("i", "int32")
    zero = tirx.const(0.0, "float32")
    inner = tirx.if_then_else(index > 0, x[index - 1], zero)
    outer = tirx.if_then_else(index < 4, inner, zero)
    y = tirx.decl_buffer((4,), "float32", "y")
    moved = unrolled_selections._read_once(
        tirx.SeqStmt([BufferStore(y, outer * float(at), [at]) for at in (1, 2)]), [y]
    )
    read, *stores = moved
    assert structural_equal(read.value, outer)
    assert len(stores) == 2


def test_what_is_written_is_not_read_earlier() -> None:
    x, index = tirx.decl_buffer((4,), "float32", "x"), tirx.Var("i", "int32")
    read = tirx.if_then_else(index > 0, x[index - 1], tirx.const(0.0, "float32"))
    run = tirx.SeqStmt([BufferStore(x, read + float(at), [at]) for at in range(3)])
    assert unrolled_selections._read_once(run, [x]) is run
    moved = unrolled_selections._read_once(run, [])
    assert len(moved) == 4


@pytest.mark.parametrize("is_intermediate", [False, True])
def test_each_pass_of_tvm_runs_once_and_in_order(is_intermediate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def passes() -> list[str]:
        ran: list[str] = []

        @pass_instrument
        class Noted:
            def run_before_pass(self, _module: tvm.IRModule, info: Any) -> None:
                if info.name not in OURS:
                    ran.append(info.name)

        built(transform(is_intermediate), Noted())
        return ran

    split = passes()
    monkeypatch.setattr(kernel_passes, "in_stages", lambda lowering, _between: lowering)
    assert split == passes()
