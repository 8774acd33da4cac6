"""The loop order of kernels without a schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, topi
from tvm_ffi import structural_equal

from devices.sketches.contiguous_loops import in_contiguous_order
from devices.sketches.dynamic.rows import tensors
from devices.sketches.spaces import unscheduled
from devices.targets import NATIVE, parse_target, resolve_target, without_late_optimisations
from tests.helpers.programs import program_task


def convolution() -> Any:
    data, weight = te.placeholder((1, 5, 9, 11), name="data"), te.placeholder((4, 5, 3, 3), name="weight")
    return te.create_prim_func([data, weight, topi.nn.relu(topi.nn.conv2d(data, weight, 1, 1, 1))])


def product() -> Any:
    x, w = te.placeholder((7, 8), name="x"), te.placeholder((8, 6), name="w")
    return te.create_prim_func([x, w, topi.matmul(x, w)])


def pooling() -> Any:
    data = te.placeholder((1, 3, 8, 8), name="data")
    return te.create_prim_func([data, topi.nn.pool2d(data, (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), "max")])


def largest_place() -> Any:
    data = te.placeholder((4, 9), name="data")
    return te.create_prim_func([data, topi.argmax(data, axis=1)])


def whole_sum() -> Any:
    """A sum without an axis of its result."""
    data = te.placeholder((4, 9), name="data")
    return te.create_prim_func([data, topi.sum(data)])


def sum_of_rows() -> Any:
    data = te.placeholder((4, 9), name="data")
    return te.create_prim_func([data, topi.sum(data, axis=1)])


def transposed_product() -> Any:
    x, w = te.placeholder((7, 8), name="x"), te.placeholder((6, 8), name="w")
    return te.create_prim_func([x, w, topi.nn.dense(x, w)])


KERNELS = [convolution, product, pooling, largest_place, whole_sum, sum_of_rows, transposed_product]


def outputs(module: Any) -> Any:
    """Return what a module computes on random numbers."""
    generator = np.random.default_rng(0)
    *inputs, result = tensors(module["main"])
    shapes = [tuple(int(extent) for extent in each.shape) for each in inputs]
    arrays = [tvm.runtime.tensor(generator.standard_normal(shape).astype("float32")) for shape in shapes]
    out = tvm.runtime.tensor(np.zeros([int(extent) for extent in result.shape], str(result.dtype)))
    target = parse_target(without_late_optimisations(resolve_target(NATIVE)))
    tvm.tirx.build(module, target=target)["main"](*arrays, out)
    return out.numpy()


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_computes_the_same_to_the_last_bit(kernel: Any) -> None:
    """Additions to one element keep their order."""
    module = tvm.IRModule({"main": kernel().with_attr("global_symbol", "main")})
    np.testing.assert_array_equal(outputs(in_contiguous_order(module)), outputs(module))


def test_the_last_axis_is_innermost_around_it_the_reductions() -> None:
    module = in_contiguous_order(tvm.IRModule({"main": product().with_attr("global_symbol", "main")}))
    assert "for k, ax1 in T.grid(8, 6)" in module.script()


@pytest.mark.parametrize("kernel", [sum_of_rows, transposed_product])
def test_what_is_read_across_the_last_axis_stays(kernel: Any) -> None:
    module = tvm.IRModule({"main": kernel().with_attr("global_symbol", "main")})
    assert structural_equal(in_contiguous_order(module), module)
    assert "T.parallel(" in in_contiguous_order(transposed(), in_parallel=True).script()


def transposed() -> Any:
    return tvm.IRModule({"main": transposed_product().with_attr("global_symbol", "main")})


def test_kernels_that_are_scheduled_stay() -> None:
    kernel = product().with_attr("tirx.is_scheduled", True)
    module = in_contiguous_order(tvm.IRModule({"kernel": kernel}))
    assert module["kernel"].same_as(kernel)


def test_private_kernels_stay_private() -> None:
    private = product().without_attr("global_symbol")
    module = in_contiguous_order(
        tvm.IRModule({"private": private, "public": product().with_attr("global_symbol", "public")})
    )
    assert "global_symbol" not in module["private"].attrs
    assert module["public"].attrs["global_symbol"] == "public"


def test_oracles_of_cpus_have_this_order() -> None:
    x, w = te.placeholder((7, 8), name="x"), te.placeholder((8, 6), name="w")
    tensors = (x, w, topi.matmul(x, w))
    assert "for k, ax1 in T.grid(8, 6)" in unscheduled(program_task(tensors, resolve_target(NATIVE, 2))).module.script()
    gpu = unscheduled(program_task(tensors, resolve_target({"kind": "cuda", "arch": "sm_87"}))).module.script()
    assert "threadIdx.x" in gpu
