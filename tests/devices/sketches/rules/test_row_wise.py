"""The rule for kernels that reduce along rows: where it applies, and what its kernels compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tvm import IRModule, compile, runtime, te, topi
from tvm.s_tir import Schedule, Trace
from tvm.target import Target

from devices.networks.graph.legalization.operators import group_norm
from devices.sketches import intrinsics
from devices.sketches.description.undescribed import UndescribedError
from devices.sketches.rules.row_wise import row_wise, row_wise_kernel
from devices.targets import parse_target, resolve_target
from fleet_tune.base.sketch import RowStep

CPU = Target({"kind": "llvm", "mcpu": "x86-64-v3", "mtriple": "x86_64-linux-gnu", "num-cores": 2})
CUDA = Target({"kind": "cuda", "arch": "sm_90"})
intrinsics.load_intrinsics('{"kind": "llvm", "mtriple": "x86_64-linux-gnu"}')
Floats = NDArray[np.float32]


def _module(*tensors: te.Tensor) -> IRModule:
    return IRModule({"main": te.create_prim_func(list(tensors)).with_attr("global_symbol", "main")})


def _placeholder(*shape: int) -> te.Tensor:
    return te.placeholder(shape, name="x")


def _softmax() -> IRModule:
    x = _placeholder(2, 6, 96)
    return _module(x, topi.nn.softmax(x))


def _layer_norm() -> IRModule:
    x, weight, bias = _placeholder(10, 64), te.placeholder((64,), name="weight"), te.placeholder((64,), name="bias")
    return _module(x, weight, bias, topi.nn.layer_norm(x, weight, bias, [1]))


def _group_norm() -> IRModule:
    x, weight, bias = _placeholder(1, 8, 6, 8), te.placeholder((8,), name="weight"), te.placeholder((8,), name="bias")
    return _module(x, weight, bias, group_norm(x, weight, bias, 4, 1e-5))


def _mean() -> IRModule:
    """Of 49, which no vector divides."""
    x = _placeholder(1, 32, 7, 7)
    return _module(x, topi.nn.adaptive_pool(x, (1, 1), "avg"))


def _row_maximum() -> IRModule:
    x = _placeholder(12, 40)
    return _module(x, topi.max(x, axis=1))


def _column_sum() -> IRModule:
    x = _placeholder(64, 64)
    return _module(x, topi.sum(x, axis=0))


def _of_a_prime_number() -> IRModule:
    x = _placeholder(16, 67)
    return _module(x, topi.sum(x, axis=1))


def _element_wise() -> IRModule:
    x = _placeholder(64, 64)
    return _module(x, topi.nn.relu(x))


def _product() -> IRModule:
    a, b = te.placeholder((16, 32), name="a"), te.placeholder((48, 32), name="b")
    return _module(a, b, topi.matmul(a, b, transp_b=True))


def _normalized(x: Floats, axes: tuple[int, ...]) -> Floats:
    variance = x.var(axes, keepdims=True)
    return np.asarray((x - x.mean(axes, keepdims=True)) / np.sqrt(variance + 1e-5), np.float32)


def _numpy_softmax(x: Floats) -> Floats:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def _numpy_group_norm(x: Floats, weight: Floats, bias: Floats) -> Floats:
    groups = _normalized(x.reshape(1, 4, 2, 6, 8), (2, 3, 4)).reshape(x.shape)
    return np.asarray(groups * weight[:, None, None] + bias[:, None, None])


EXPECTED: list[tuple[Callable[[], IRModule], Callable[..., Any]]] = [
    (_softmax, _numpy_softmax),
    (_layer_norm, lambda x, weight, bias: _normalized(x, (1,)) * weight + bias),
    (_group_norm, _numpy_group_norm),
    (_mean, lambda x: x.mean((2, 3), keepdims=True)),
    (_row_maximum, lambda x: x.max(1)),
]


def _closed(trace: Trace, choice: int) -> Trace:
    """With few rows and lanes (0) or many (1)."""
    for inst in trace.insts:
        if inst.kind.name == "SampleCategorical":
            trace = trace.with_decision(inst, choice * (len(inst.attrs[0]) - 1), True)
        if inst.kind.name == "SamplePerfectTile":
            outer, inner = (int(factor) for factor in trace.get_decision(inst))
            many = choice and outer * inner > 1
            trace = trace.with_decision(inst, [outer * inner // 2, 2] if many else [outer * inner, 1], True)
    return trace


@pytest.mark.parametrize("choice", [0, 1])
@pytest.mark.parametrize(("define", "expected"), EXPECTED, ids=[define.__name__[1:] for define, _ in EXPECTED])
def test_the_kernel_is_right(define: Callable[[], IRModule], expected: Callable[..., Any], choice: int) -> None:
    module = define()
    (schedule,) = row_wise(module, CPU)
    scheduled = Schedule(module, debug_mask="none")
    _closed(schedule.trace, choice).apply_to_schedule(scheduled, remove_postproc=True)
    script = scheduled.mod.script()
    assert script.count("T.parallel") == 1  # all steps in the one loop over rows
    assert "T.vectorized" in script

    rng = np.random.default_rng(3)
    *inputs, out = (
        rng.standard_normal([int(extent) for extent in each.shape], dtype=np.float32) for each in module["main"].params
    )
    result = runtime.tensor(np.zeros_like(out))
    kernel = compile(scheduled.mod, target=parse_target(resolve_target("native", 1)))
    kernel["main"](*map(runtime.tensor, inputs), result)
    np.testing.assert_allclose(result.numpy(), expected(*inputs), rtol=1e-5, atol=1e-5)


def _lanes(schedule: Schedule, step: RowStep, vector: list[list[int]]) -> tuple[int, str]:
    """The lanes that a step takes by the decisions, each in its columns, and the first block that it is."""
    starts = np.cumsum([0, *map(len, vector)])
    values = [value for decision in vector for value in decision]
    name = step.name
    if step.few:
        assert step.column is not None
        samples = [each for each in schedule.trace.insts if each.kind.name.startswith("Sample")]
        choice = samples[list(starts).index(step.column)]
        lanes = step.few * int(choice.attrs[0][values[step.column]])
        return lanes, f"{name}_rf_rf_update" if step.few > 1 else f"{name}_rf_update"
    return (values[step.column] if step.column is not None else 1), name


@pytest.mark.parametrize("choice", [0, 1])
@pytest.mark.parametrize("define", [define for define, _ in EXPECTED], ids=lambda define: define.__name__[1:])
def test_its_steps_are_what_the_schedule_does(define: Callable[[], IRModule], choice: int) -> None:
    module = define()
    (schedule,) = row_wise(module, CPU)
    trace = _closed(schedule.trace, choice)
    scheduled = Schedule(module, debug_mask="none")
    trace.apply_to_schedule(scheduled, remove_postproc=True)
    taken = [trace.get_decision(each) for each in trace.insts if each.kind.name.startswith("Sample")]
    vector = [[int(n) for n in each] if hasattr(each, "__len__") else [int(each)] for each in taken]
    together = [value for decision in vector for value in decision]

    kernel = row_wise_kernel(module, CPU)
    assert kernel is not None
    rows = together[kernel.together]
    for step in kernel.steps:
        lanes, name = _lanes(scheduled, step, vector)
        parallel, *loops = [scheduled.get(each) for each in scheduled.get_loops(scheduled.get_sblock(name, "main"))]
        assert int(parallel.extent) * rows == kernel.rows
        extents = [int(each.extent) for each in loops]
        assert np.prod(extents) == rows * step.elements
        assert extents[-1] == lanes or step.column is None
        if step.few:
            assert extents[0] == step.elements // lanes
            *_, last = [scheduled.get(each) for each in scheduled.get_loops(scheduled.get_sblock(step.name, "main"))]
            assert int(last.extent) == (step.few if step.few > 1 else lanes)


def test_what_a_softmax_does_to_each_element() -> None:
    kernel = row_wise_kernel(_softmax(), CPU)
    assert kernel is not None
    done = [(each.operations, each.divisions, each.calls, each.reads, each.writes) for each in kernel.steps]
    # The largest, the difference from it and its exp, their sum, and the quotient by that.
    assert done == [(1, 0, 0, 1, 0), (1, 0, 1, 1, 1), (1, 0, 0, 1, 0), (0, 1, 0, 1, 1)]
    assert (kernel.rows, {each.elements for each in kernel.steps}) == (12, {96})
    assert kernel.moved_bytes == 2 * 4 * 96  # x and the result
    assert kernel.held_bytes == 4 * (3 * 96 + 2)  # and the powers, the largest and the sum


def test_what_is_the_same_for_a_row_is_not_counted() -> None:
    kernel = row_wise_kernel(_layer_norm(), CPU)
    assert kernel is not None
    done = [(each.operations, each.divisions, each.calls, each.reads, each.writes) for each in kernel.steps]
    # The sum; the difference from the mean, squared and added up; what is normalised times the weight and the bias.
    assert done == [(1, 0, 0, 1, 0), (3, 0, 0, 1, 0), (4, 0, 0, 3, 1)]
    assert [(each.few, each.column) for each in kernel.steps] == [(4, 0), (4, 1), (0, 5)]
    assert kernel.moved_bytes == 2 * 4 * 64  # the weight and the bias are no row's


def test_what_has_no_such_sketch_is_not_described_so() -> None:
    assert row_wise_kernel(_column_sum(), CPU) is None


@pytest.mark.parametrize("define", [_column_sum, _of_a_prime_number, _element_wise, _product])
def test_what_has_no_rows_that_can_be_cut_has_no_such_sketch(define: Callable[[], IRModule]) -> None:
    assert row_wise(define(), CPU) == []


def test_it_is_a_rule_for_cpus() -> None:
    assert row_wise(_softmax(), CUDA) == []


@pytest.mark.parametrize("make", [topi.argmax, topi.argmin], ids=["argmax", "argmin"])
def test_the_index_of_a_maximum_is_searched_without_a_description(make: Any) -> None:
    x = te.placeholder((48, 1000), name="x")
    with pytest.raises(UndescribedError, match="2 results of a row together"):
        row_wise_kernel(_module(x, make(x, axis=1)), CPU)
