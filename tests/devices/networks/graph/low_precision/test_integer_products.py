"""Quantised convolutions and products are computed in integers, and give what the same network gives in floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from devices.builds.executables import calls, compile_host, kernel_calls
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.networks.graph.ir.calls import operator_name
from devices.networks.graph.low_precision.grids import FloatProduct, Grid, Grids
from devices.networks.graph.low_precision.integer_products import ProductCounts, count_products, integer_products
from devices.targets import parse_target
from tests.helpers.properties import examples
from tests.helpers.quantised_graphs import (
    OTHER_OPERATORS,
    VNNI,
    WITHOUT,
    Array,
    Builder,
    as_bytes,
    both,
    in_integers,
    kernels_of,
    network,
    product_of,
    rounded,
    weights,
)


def convolution(
    channels: int, filters: int, kernel: int, stride: int, padding: int, low: int, high: int, dilation: int = 1
) -> tuple[Any, Array]:
    """A convolution of data with so many levels, and an input for it."""
    rng = np.random.default_rng([channels, filters, kernel, stride, padding])
    weight = weights(rng, kernel, kernel, channels, filters)

    def body(builder: Builder, x: Any) -> Any:
        data = rounded(builder, x, 0.05, low, high)
        return relax.op.nn.conv2d(
            data, relax.const(weight), stride, padding, dilation, data_layout="NHWC", kernel_layout="HWIO"
        )

    module = network((1, 9, 7, channels), body)
    return module, rng.normal(0, 5, (1, 9, 7, channels)).astype(np.float32)


@examples(8)
@given(
    channels=st.integers(1, 9),
    filters=st.sampled_from([1, 5, 16, 20]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    low=st.integers(-255, 0),
    levels=st.sampled_from([255, 15, 127]),
)
def test_convolutions_are_exact(
    channels: int, filters: int, kernel: int, stride: int, padding: int, low: int, levels: int
) -> None:
    low = max(low, -levels)
    module, x = convolution(channels, filters, kernel, stride, padding, low, low + levels)
    assert in_integers(module) == 1
    floats, integers = both(module, x)
    # The integers are exact: what differs is the rounding of the sums of floats.
    np.testing.assert_allclose(integers, floats, rtol=1e-5, atol=1e-5 * np.abs(floats).max())


@pytest.mark.parametrize("target", OTHER_OPERATORS.values(), ids=OTHER_OPERATORS)
@pytest.mark.parametrize("least", [-255, -100, 0])
def test_every_operator_computes_the_same_sums(least: int, target: str) -> None:
    """Of pairs, and of signed bytes: padded at the edges, with terms that are no multiple of the operator's, in groups
    that are packed and in some that are not, and of a matrix."""
    rng = np.random.default_rng(-least)
    full, pairs, matrix = weights(rng, 3, 2, 7, 8), weights(rng, 2, 2, 2, 12), weights(rng, 12, 5)

    def body(builder: Builder, x: Any) -> Any:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        data = rounded(builder, x, 0.05, least, least + 255)
        sums = builder.emit(relax.op.nn.conv2d(data, relax.const(full), padding=1, **layouts))
        data = rounded(builder, sums, 0.4, least, least + 255)
        sums = builder.emit(relax.op.nn.conv2d(data, relax.const(pairs), groups=4, **layouts))
        return relax.op.matmul(rounded(builder, sums, 0.4, least, least + 255), relax.const(matrix))

    module, x = network((1, 6, 5, 7), body), rng.normal(0, 5, (1, 6, 5, 7)).astype(np.float32)
    use_kernel_passes()
    ours, theirs = (
        compile_host(relax.transform.LegalizeOps()(integer_products(module, parse_target(each))))(x)[0]
        for each in (target, VNNI)
    )
    np.testing.assert_array_equal(ours, theirs)
    assert len(np.unique(ours)) > 1


@pytest.mark.parametrize("target", OTHER_OPERATORS.values(), ids=OTHER_OPERATORS)
def test_ties_are_rounded_alike_with_every_operator(target: str) -> None:
    """Many sums are between two steps, where the last bits of the factor and the offset decide."""
    rng = np.random.default_rng(12)
    weight = rng.integers(-127, 128, (8, 16)).astype(np.float32)
    weight[0] = 127  # the factor of each channel is 1

    def body(builder: Builder, x: Any) -> Any:
        product = builder.emit(relax.op.matmul(rounded(builder, x, 1.0, -100, 155), relax.const(weight)))
        return rounded(builder, product, 6.0, -128, 127)

    module, x = network((64, 8), body), rng.normal(0, 2, (64, 8)).astype(np.float32)
    use_kernel_passes()
    ours, theirs = (
        compile_host(relax.transform.LegalizeOps()(integer_products(module, parse_target(each))))(x)[0]
        for each in (target, VNNI)
    )
    np.testing.assert_array_equal(ours, theirs)
    assert len(np.unique(ours)) > 100


@pytest.mark.parametrize(("groups", "channels", "filters"), [(8, 8, 8), (8, 8, 16), (2, 8, 6), (3, 9, 6)])
def test_convolutions_in_groups_are_exact(groups: int, channels: int, filters: int) -> None:
    rng = np.random.default_rng(groups)
    weight = weights(rng, 3, 3, channels // groups, filters)

    def body(builder: Builder, x: Any) -> Any:
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        return relax.op.nn.conv2d(
            rounded(builder, x, 0.5, -3, 252), relax.const(weight), padding=1, groups=groups, **layouts
        )

    module = network((1, 6, 5, channels), body)
    assert in_integers(module) == 1
    floats, integers = both(module, rng.normal(0, 40, (1, 6, 5, channels)).astype(np.float32))
    np.testing.assert_allclose(integers, floats, rtol=1e-5, atol=1e-5 * np.abs(floats).max())


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_over_other_numbers_of_axes_are_exact(rank: int) -> None:
    rng = np.random.default_rng(rank)
    weight = weights(rng, *[3] * rank, 6, 5)
    places = "DHW"[-rank:]

    def body(builder: Builder, x: Any) -> Any:
        operator = getattr(relax.op.nn, f"conv{rank}d")
        layouts = {"data_layout": f"N{places}C", "kernel_layout": f"{places}IO"}
        return operator(rounded(builder, x, 0.5, -100, 155), relax.const(weight), 1, 1, **layouts)

    shape = (1, *[5] * rank, 6)
    module = network(shape, body)
    assert in_integers(module) == 1
    floats, integers = both(module, rng.normal(0, 40, shape).astype(np.float32))
    np.testing.assert_allclose(integers, floats, rtol=1e-5, atol=1e-5 * np.abs(floats).max())


def test_a_dilated_convolution_is_exact() -> None:
    floats, integers = both(*convolution(5, 6, 3, 1, 2, -100, 155, dilation=2))
    np.testing.assert_allclose(integers, floats, rtol=1e-5, atol=1e-5 * np.abs(floats).max())


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 10), (1, 33)])
def test_products_with_a_matrix_are_exact(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    weight = weights(rng, shape[-1], 12)

    def body(builder: Builder, x: Any) -> Any:
        return relax.op.matmul(rounded(builder, x, 0.1, -128, 127), relax.const(weight))

    module = network(shape, body)
    assert in_integers(module) == 1
    floats, integers = both(module, rng.normal(0, 8, shape).astype(np.float32))
    np.testing.assert_allclose(integers, floats, rtol=1e-5, atol=1e-5 * np.abs(floats).max())


def test_whole_numbers_are_followed_through_what_keeps_them() -> None:
    """Pooling, transposes, views, and a second rounding to the same steps: bytes all the way."""
    rng = np.random.default_rng(1)
    weight = weights(rng, 8, 6)

    def body(builder: Builder, x: Any) -> Any:
        data = rounded(builder, x, 0.25, -3, 252)
        pooled = builder.emit(relax.op.nn.max_pool2d(data, (2, 2), (2, 2), layout="NHWC"))
        again = rounded(builder, pooled, 0.25, -3, 252)
        rows = builder.emit(relax.op.permute_dims(again, [0, 2, 1, 3]))
        return relax.op.matmul(builder.emit(relax.op.reshape(rows, (12, 8))), relax.const(weight))

    module = network((1, 6, 8, 8), body)
    assert in_integers(module) == 1
    floats, integers = both(module, rng.normal(0, 20, (1, 6, 8, 8)).astype(np.float32))
    np.testing.assert_allclose(integers, floats, rtol=1e-5, atol=1e-4)
    new = integer_products(module, parse_target(VNNI))
    kernels = [str(call.args[0].name_hint) for call in kernel_calls(new["main"])]
    assert kernels == ["quantize", "matmul", "scale"], "the second rounding changes nothing"
    pooled = next(call for call in calls(new["main"].body) if operator_name(call) == "relax.nn.max_pool2d")
    assert str(pooled.args[0].ty.dtype) == "uint8"


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("int8", -128), ("int8", 5)])
def test_bytes_that_a_network_holds_are_read_as_they_are(dtype: str, zero: int) -> None:
    rng = np.random.default_rng(zero % 7)
    weight, limits = weights(rng, 8, 6), np.iinfo(dtype)

    def body(builder: Builder, x: Any) -> Any:
        data = rounded(builder, x, 0.5, limits.min - zero, limits.max - zero)
        moved = builder.emit(
            relax.op.add(builder.emit(relax.op.divide(data, relax.const(0.5))), relax.const(float(zero)))
        )
        held = builder.emit(relax.op.reshape(builder.emit(relax.op.astype(moved, dtype)), (4, 8)))
        whole = builder.emit(relax.op.astype(held, "float32"))
        shifted = builder.emit(relax.op.subtract(whole, relax.const(float(zero)))) if zero else whole
        return relax.op.matmul(builder.emit(relax.op.multiply(shifted, relax.const(0.5))), relax.const(weight))

    module = network((2, 2, 8), body)
    assert in_integers(module) == 1
    floats, integers = both(module, rng.normal(0, 40, (2, 2, 8)).astype(np.float32))
    np.testing.assert_allclose(integers, floats, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("is_reshaped", [False, True])
def test_zero_points_and_scales_may_be_known_at_run_time_only(is_scaled: bool, is_reshaped: bool) -> None:
    """As in dynamic quantisation: the steps follow from the data. torch's zero points are tensors of one number."""
    rng = np.random.default_rng(7)
    weight = weights(rng, 8, 6)

    def body(builder: Builder, x: Any) -> Any:
        least = builder.emit(relax.op.min(x, keepdims=False))
        zero = builder.emit(relax.op.round(builder.emit(relax.op.negative(least))))
        moved = builder.emit(relax.op.add(builder.emit(relax.op.round(x)), zero))
        held = builder.emit(relax.op.astype(builder.emit(relax.op.clip(moved, 0, 255)), "uint8"))
        byte = builder.emit(relax.op.astype(zero, "uint8"))
        if is_reshaped:
            byte = builder.emit(relax.op.reshape(byte, (1,)))
        point = builder.emit(relax.op.astype(byte, "float32"))
        if is_reshaped:
            point = builder.emit(relax.op.reshape(point, ()))
        data = builder.emit(relax.op.subtract(builder.emit(relax.op.astype(held, "float32")), point))
        if is_scaled:
            data = builder.emit(relax.op.multiply(data, builder.emit(relax.op.max(x, keepdims=False))))
        product = builder.emit(relax.op.matmul(data, relax.const(weight)))
        return relax.op.add(product, builder.emit(relax.op.sum(data, -1, keepdims=True)))

    module = network((4, 8), body)
    assert in_integers(module) == 1
    floats, integers = both(module, rng.normal(0, 30, (4, 8)).astype(np.float32))
    np.testing.assert_allclose(integers, floats, rtol=1e-4, atol=1e-4 * np.abs(floats).max())


def test_products_of_integers_are_products_of_bytes() -> None:
    """As TVM reads ONNX's MatMulInteger: in int32, with a zero point that is known at run time."""
    rng = np.random.default_rng(8)
    weight = rng.integers(-128, 128, (8, 6)).astype(np.int32)

    def body(builder: Builder, x: Any) -> Any:
        held = as_bytes(builder, x)
        zero = builder.emit(relax.op.astype(builder.emit(relax.op.max(held, keepdims=False)), "int32"))
        data = builder.emit(relax.op.subtract(builder.emit(relax.op.astype(held, "int32")), zero))
        return relax.op.matmul(data, relax.const(weight))

    module = network((4, 8), body)
    assert in_integers(module) == 1
    floats, integers = both(module, rng.normal(100, 60, (4, 8)).astype(np.float32))
    np.testing.assert_array_equal(integers, floats)


def test_products_of_integers_that_are_multiplied_have_the_right_value() -> None:
    weight = np.random.default_rng(8).integers(-128, 128, (8, 6)).astype(np.int32)

    def body(builder: Builder, x: Any) -> Any:
        data = builder.emit(relax.op.astype(as_bytes(builder, x), "int32"))
        twice = builder.emit(relax.op.multiply(data, relax.const(2, "int32")))
        return relax.op.matmul(twice, relax.const(weight))

    floats, integers = both(network((4, 8), body), RNG.normal(100, 60, (4, 8)).astype(np.float32))
    np.testing.assert_array_equal(integers, floats)


@pytest.mark.parametrize(("subtracted", "computed"), [("int32", "float32"), ("float32", "int32")])
def test_zero_points_may_have_another_type_than_what_reads_the_difference(subtracted: str, computed: str) -> None:
    """A product, and an operator that stays in the type of the network."""
    weight = np.random.default_rng(8).integers(-128, 128, (8, 6)).astype(computed)

    def body(builder: Builder, x: Any) -> Any:
        held = as_bytes(builder, x)
        zero = builder.emit(relax.op.astype(builder.emit(relax.op.max(held, keepdims=False)), subtracted))
        moved = builder.emit(relax.op.subtract(builder.emit(relax.op.astype(held, subtracted)), zero))
        data = builder.emit(relax.op.astype(moved, computed))
        if computed == "float32":
            data = builder.emit(relax.op.multiply(data, relax.const(0.5)))
        product = builder.emit(relax.op.matmul(data, relax.const(weight)))
        return relax.op.add(product, builder.emit(relax.op.sum(data, -1, keepdims=True)))

    module = network((4, 8), body)
    assert in_integers(module) == 1
    floats, integers = both(module, np.random.default_rng(9).normal(100, 60, (4, 8)).astype(np.float32))
    np.testing.assert_array_equal(integers, floats)


def rounded_after_more_axes(builder: Builder, x: Any) -> Any:
    """A product plus a constant of a higher rank, rounded."""
    product = builder.emit(relax.op.matmul(rounded(builder, x, 0.5, -128, 127), relax.const(weights(RNG, 8, 6))))
    return rounded(
        builder, builder.emit(relax.op.add(product, relax.const(np.ones((1, 1, 6), np.float32)))), 0.5, 0, 255
    )


def divided_by_more_axes(builder: Builder, x: Any) -> Any:
    step = relax.const(np.full((1, 1, 1), 0.5, np.float32))
    whole = builder.emit(relax.op.round(builder.emit(relax.op.divide(x, step))))
    return builder.emit(relax.op.multiply(builder.emit(relax.op.clip(whole, -128, 127)), relax.const(0.5)))


def shifted_by_more_axes(builder: Builder, x: Any) -> Any:
    whole = builder.emit(relax.op.astype(as_bytes(builder, x), "float32"))
    return builder.emit(relax.op.subtract(whole, relax.const(np.full((1, 1, 1), 3, np.float32))))


def multiplied_by_more_axes(builder: Builder, x: Any) -> Any:
    whole = builder.emit(relax.op.astype(as_bytes(builder, x), "float32"))
    return builder.emit(relax.op.multiply(whole, relax.const(np.full((1, 1, 1), 0.5, np.float32))))


@pytest.mark.parametrize(
    "data", [rounded_after_more_axes, divided_by_more_axes, shifted_by_more_axes, multiplied_by_more_axes]
)
def test_constants_may_add_axes(data: Callable[[Builder, Any], Any]) -> None:
    def body(builder: Builder, x: Any) -> Any:
        whole = data(builder, x)
        weight = relax.const(weights(np.random.default_rng(3), int(whole.ty.shape[-1]), 4))
        return relax.op.matmul(whole, weight)

    module = network((4, 8), body)
    floats, integers = both(module, np.random.default_rng(9).normal(0, 30, (4, 8)).astype(np.float32))
    assert integers.shape == floats.shape == (1, 4, 4)
    # The sums of the first may be rounded to the next step.
    np.testing.assert_allclose(integers, floats, rtol=1e-5, atol=2.0)


def test_a_value_between_products_may_be_an_output() -> None:
    """Its readers outside of the function get floats, products get its bytes."""
    rng = np.random.default_rng(9)
    first, second = weights(rng, 8, 8), weights(rng, 8, 8)
    builder = Builder()
    x = relax.Var("x", relax.TensorType((3, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(rounded(builder, x, 0.5, -128, 127), relax.const(first)))
            whole = builder.emit(relax.op.round(builder.emit(relax.op.divide(product, relax.const(0.25)))))
            clipped = builder.emit(relax.op.clip(whole, 0, 255))
            between = builder.emit_output(relax.op.multiply(clipped, relax.const(0.25)))
            last = builder.emit_output(relax.op.matmul(between, relax.const(second)))
        builder.emit_func_output(relax.Tuple([between, last]))
    module = relax.transform.Normalize()(builder.get())
    assert in_integers(module) == 2
    data = rng.normal(0, 30, (3, 8)).astype(np.float32)
    ours = integer_products(module, parse_target(VNNI))
    results = [compile_host(relax.transform.LegalizeOps()(each))(data) for each in (module, ours)]
    for floats, integers in zip(*results, strict=True):
        np.testing.assert_allclose(integers, floats, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("between", ["nothing", "bias", "relu", "clip", "relu of a step"])
@pytest.mark.parametrize("low", [0, -128])
def test_a_product_that_is_rounded_has_one_factor_and_one_offset(between: str, low: int) -> None:
    """What is between the sums and the rounding is within the same kernel's line and bounds: at most a step differs."""
    rng = np.random.default_rng([len(between), -low])
    weight, bias = weights(rng, 16, 12), rng.normal(0, 3, 12).astype(np.float32)
    step = 0.25

    def body(builder: Builder, x: Any) -> Any:
        value = builder.emit(relax.op.matmul(rounded(builder, x, 0.1, -100, 155), relax.const(weight)))
        if between != "nothing":
            value = builder.emit(relax.op.add(value, relax.const(bias)))
        if between == "clip":
            value = builder.emit(relax.op.clip(value, -2.3, 6.1))
        elif between.startswith("relu"):
            value = builder.emit(relax.op.nn.relu(value))
        return rounded(builder, value, step if between != "relu of a step" else 1.0, low, low + 255)

    module = network((5, 16), body)
    floats, integers = both(module, rng.normal(0, 6, (5, 16)).astype(np.float32))
    steps = np.abs(integers - floats) / (step if between != "relu of a step" else 1.0)
    assert steps.max() <= 1.001
    assert (steps > 0.5).mean() < 0.05
    kernels = kernels_of(integer_products(module, parse_target(VNNI)))
    assert kernels == ["quantize", "matmul", "requantize", "widen" if between == "relu of a step" else "dequantize"]


def test_sums_that_something_else_reads_are_not_taken_back() -> None:
    rng = np.random.default_rng(11)
    weight = weights(rng, 8, 6)

    def body(builder: Builder, x: Any) -> Any:
        product = builder.emit(relax.op.matmul(rounded(builder, x, 0.5, -128, 127), relax.const(weight)))
        return relax.op.subtract(product, rounded(builder, product, 0.25, -128, 127))

    module = network((4, 8), body)
    kernels = kernels_of(integer_products(module, parse_target(VNNI)))
    assert "requantize" not in kernels
    floats, integers = both(module, rng.normal(0, 6, (4, 8)).astype(np.float32))
    np.testing.assert_allclose(integers, floats, atol=1e-4)


def test_nan_is_the_least_number() -> None:
    """As in ONNX Runtime; infinities are the numbers at the ends."""
    weight = np.eye(4, dtype=np.float32)
    module = network((2, 4), product_of(-128, 127, weight))
    x = np.array([[np.nan, np.inf, -np.inf, 3.0], [-np.nan, 0.0, -0.0, 1e-40]], np.float32)
    expected = np.array([[-128, 127, -128, 6], [-128, 0, 0, 0]], np.float32) * 0.5
    np.testing.assert_array_equal(both(module, x)[1], expected)


def test_every_other_reader_of_the_data_gets_the_same_floats() -> None:
    rng = np.random.default_rng(2)
    weight = weights(rng, 8, 8)

    def body(builder: Builder, x: Any) -> Any:
        data = rounded(builder, x, 0.125, -100, 155)  # exact in float32
        product = builder.emit(relax.op.matmul(data, relax.const(weight)))
        return relax.op.add(rounded(builder, product, 0.5, -128, 127), data)

    module = network((4, 8), body)
    floats, integers = both(module, rng.normal(0, 10, (4, 8)).astype(np.float32))
    np.testing.assert_array_equal(integers, floats)


RNG = np.random.default_rng(3)
SPOILED = weights(RNG, 8, 4)
SPOILED[0, 0] += 0.01
OTHERS: dict[str, tuple[tuple[int, ...], Callable[[Builder, Any], Any]]] = {
    "more levels than a byte has": ((3, 8), product_of(-128, 128, weights(RNG, 8, 4))),
    "levels without zero": ((3, 8), product_of(1, 200, weights(RNG, 8, 4))),
    "weights that are not whole": ((3, 8), product_of(0, 255, SPOILED)),
    "weights with -128 and 128": ((3, 3), product_of(0, 255, np.array([[-128], [127], [128]], np.float32))),
    "weights that are not finite": ((3, 8), product_of(0, 255, np.full((8, 4), np.nan, np.float32))),
    "a sum too long for 32 bits": ((1, 70_000), product_of(0, 255, np.ones((70_000, 1), np.float32))),
    "data that was not rounded": ((3, 8), lambda _, x: relax.op.matmul(x, relax.const(weights(RNG, 8, 4)))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_has_no_form_in_bytes_stays_in_floats(name: str) -> None:
    module = network(*OTHERS[name])
    assert in_integers(module) == 0
    counts = count_products(Grids(module["main"]), parse_target(VNNI))
    assert counts.integers == 0
    of_weights = "weights" in name or "sum" in name
    (product,) = counts.floats
    assert product.name.startswith("matmul ")
    assert product.reason.startswith("their weights are not whole" if of_weights else "their data is not rounded")


def test_a_target_without_the_instruction_stays_in_floats() -> None:
    module = network((3, 8), product_of(0, 255, weights(RNG, 8, 4)))
    assert integer_products(module, parse_target(WITHOUT)).same_as(module)
    reason = "the device has no instruction for products of bytes"
    assert count_products(Grids(module["main"]), parse_target(WITHOUT)) == ProductCounts(
        0, (FloatProduct("matmul 3x4", reason),)
    )


def test_weights_of_few_levels_and_of_zeros_are_whole() -> None:
    weight = np.zeros((8, 3), np.float32)
    weight[:, 1] = [1, -1, 0, 1, 0, 0, -1, 1]
    weight[:, 2] = np.arange(-128, -120) * np.float32(0.1)  # the least is -128 alone
    module = network((3, 8), product_of(0, 255, weight))
    assert in_integers(module) == 1
    floats, integers = both(module, RNG.normal(0, 60, (3, 8)).astype(np.float32))
    np.testing.assert_allclose(integers, floats, rtol=1e-5)


def test_a_grid_is_what_was_rounded_and_clipped() -> None:
    def body(builder: Builder, x: Any) -> Any:
        return relax.op.nn.max_pool2d(rounded(builder, x, 0.5, -7, 8), (2, 2), layout="NHWC")

    main = network((1, 4, 4, 2), body)["main"]
    grids = Grids(main)
    found = [grids.of(binding.var) for block in main.body.blocks for binding in block.bindings]
    assert [grid and (grid.least, grid.most, grid.scale, grid.moved) for grid in found] == [
        None,
        None,
        (-7, 8, 1.0, False),
        (-7, 8, 0.5, False),
        (-7, 8, 0.5, True),
    ]
    assert found[2] == Grid(-7, 8, 1.0)
