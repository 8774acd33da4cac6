"""Kernels of products in integers: their sketches, and the forms of bytes that targets are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from devices.builds.checks.check_plan import plan_of
from devices.builds.executables import compile_host, kernel_calls
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.networks.graph.low_precision.integer_products import integer_products
from devices.networks.tasks.lowering import LoweringSteps, lower_network
from devices.sketches.spaces import DesignSpace, parse_module, unscheduled
from devices.targets import parse_target, resolve_target
from fleet_tune.base.domain import Candidate
from policies.space.sampling import sample
from tests.helpers.quantised_graphs import (
    CPU,
    OTHER_OPERATORS,
    VNNI,
    Builder,
    network,
    product_of,
    rounded,
    weights,
)
from tests.helpers.scheduled import run


def convolution_of_an_image(builder: Builder, x: Any) -> Any:
    weight = relax.const(weights(np.random.default_rng(4), 3, 3, 16, 32))
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return relax.op.nn.conv2d(rounded(builder, x, 0.05, -128, 127), weight, padding=1, **layouts)


def product_of_a_matrix(builder: Builder, x: Any) -> Any:
    weight = relax.const(weights(np.random.default_rng(4), 64, 32))
    return relax.op.matmul(rounded(builder, x, 0.05, -128, 127), weight)


def product_with_itself(builder: Builder, x: Any) -> Any:
    data = rounded(builder, x, 0.05, -128, 127)
    return relax.op.matmul(data, builder.emit(relax.op.permute_dims(data)))


@pytest.mark.parametrize(
    ("shape", "product", "operations", "target", "bits"),
    [
        ((1, 8, 8, 16), convolution_of_an_image, 8 * 8 * 32 * 9 * 4, VNNI, 31),
        ((1, 8, 8, 16), convolution_of_an_image, 8 * 8 * 32 * 9 * 4, OTHER_OPERATORS["pairs"], 23),
        ((1, 8, 8, 16), convolution_of_an_image, 8 * 8 * 32 * 9 * 4, OTHER_OPERATORS["signed"], 31),
        ((12, 64), product_of_a_matrix, 12 * 32 * 16, VNNI, 31),
        ((24, 64), product_with_itself, 24 * 24 * 16, VNNI, 31),
    ],
)
def test_candidates_of_all_sketches_agree_with_the_unscheduled_program(
    shape: tuple[int, ...], product: Callable[[Builder, Any], Any], operations: int, target: str, bits: int
) -> None:
    """A product in integers with its rounding, scheduled by every rule: equal bit by bit."""
    rng = np.random.default_rng(4)

    def body(builder: Builder, x: Any) -> Any:
        return rounded(builder, builder.emit(product(builder, x)), 0.3, 0, 255)

    module = integer_products(network(shape, body), parse_target(target))
    lowered = lower_network(module, "fingerprint", ("x",), CPU, LoweringSteps("net"))
    (task,) = [each for each in lowered.tasks if "requantize" in each.workload.name]
    assert task.workload.flop >= 2 * operations
    use_kernel_passes()
    space = DesignSpace(task)
    oracle = unscheduled(task)
    plan = plan_of(parse_module(task.workload.module)["main"])
    integers = [at for at, spec in enumerate(oracle.args) if spec.dtype == "int32"]
    packed = max(integers, key=lambda at: np.prod(oracle.args[at].shape))
    for draw in (plan.draws[packed], plan.specials[packed].base):
        assert draw.low <= -(2 ** (bits - 1)), "all weights of a number are tried"
        assert draw.high >= 2 ** (bits - 1)
    limits = {"uint8": (0, 256), "int32": (-(2**bits), 2**bits), "float32": (-2, 3)}
    inputs = [rng.integers(*limits[spec.dtype], spec.shape).astype(spec.dtype) for spec in oracle.args]
    expected = run(oracle, inputs, CPU.target)
    rules = set()
    for sketch in space.sketches:
        assert sketch.described
        assert sketch.statements[0].arithmetic == "int8"
        for row in sample(sketch, 3, rng):
            scheduled = space.schedule(Candidate(task.id, sketch.index, sketch.id, tuple(map(int, row))))
            for got, wanted in zip(run(scheduled, inputs, CPU.target), expected, strict=True):
                np.testing.assert_array_equal(got, wanted)
            rules.add(sketch.rule)
    assert {"register-blocked", "multi-level-tiling"} <= rules


def test_kernels_whose_epilogue_computes_more_than_their_product_are_described() -> None:
    """As those of EfficientNet: a short product, then SiLU between rounded values. The product is not the main block,
    and what reads its data by vectors is placed in its loops."""
    weight = weights(np.random.default_rng(4), 1, 1, 32, 64)

    def body(builder: Builder, x: Any) -> Any:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        product = builder.emit(relax.op.nn.conv2d(rounded(builder, x, 0.05, -128, 127), relax.const(weight), **layouts))
        data = rounded(builder, product, 0.3, -100, 155)
        gate = rounded(builder, builder.emit(relax.op.sigmoid(data)), 1 / 256, 0, 255)
        return rounded(builder, builder.emit(relax.op.multiply(data, gate)), 0.3, -5, 250)

    module = integer_products(network((1, 8, 8, 32), body), parse_target(VNNI))
    lowered = lower_network(module, "fingerprint", ("x",), CPU, LoweringSteps("net"))
    (task,) = [each for each in lowered.tasks if "sigmoid" in each.workload.name]
    sketches = DesignSpace(task).sketches
    assert {"register-blocked", "multi-level-tiling"} <= {sketch.rule for sketch in sketches}
    assert [sketch.rule for sketch in sketches if not sketch.described] == []


ORIN = resolve_target("nvidia/jetson-orin-nano")


@pytest.mark.parametrize(
    ("target", "rows", "terms", "columns", "name"),
    [
        (ORIN, 16, 32, 48, "int8"),
        (ORIN, 8, 32, 48, "int32"),
        (ORIN, 16, 24, 48, "int32"),
        (ORIN, 16, 32, 40, "int32"),
        (VNNI, 16, 32, 48, "int32"),
        (resolve_target({"kind": "cuda", "arch": "sm_61"}), 16, 32, 48, "int32"),
    ],
)
def test_tensor_cores_multiply_signed_bytes_where_extents_fit_them(
    target: str, rows: int, terms: int, columns: int, name: str
) -> None:
    """Others hold several in each 32-bit number. All compute the same."""
    weight = weights(np.random.default_rng(0), terms, columns)
    module = network((rows, terms), product_of(-100, 155, weight))
    new = integer_products(module, parse_target(target))
    (product,) = [call for call in kernel_calls(new["main"]) if call.args[0].name_hint == "matmul"]
    assert str(product.args[1].fields[1].ty.dtype) == name
    x = np.random.default_rng(1).normal(0, 30, (rows, terms)).astype(np.float32)
    use_kernel_passes()
    theirs, ours = (
        compile_host(relax.transform.LegalizeOps()(each))(x)[0]
        for each in (integer_products(module, parse_target(VNNI)), new)
    )
    np.testing.assert_array_equal(ours, theirs)
