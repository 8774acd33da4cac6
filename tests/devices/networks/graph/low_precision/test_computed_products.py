"""Products of two computed values, as in attention, are computed in integers, and give what floats give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

from devices.builds.executables import compile_host
from devices.builds.passes.kernel_passes import use_kernel_passes
from devices.networks.graph.low_precision.grids import FloatProduct, Grids
from devices.networks.graph.low_precision.integer_products import ProductCounts, count_products, integer_products
from devices.targets import parse_target
from tests.helpers.properties import examples
from tests.helpers.quantised_graphs import (
    OTHER_OPERATORS,
    VNNI,
    Array,
    Builder,
    both,
    kernels_of,
    network,
    rounded,
    weights,
)


def product_of_computed(
    left: tuple[int, ...], right: tuple[int, ...], least: tuple[int, int], after: float | None = None
) -> tuple[Any, Array]:
    """A product of two values that are cut from the input and rounded, and an input for it. ``least``: the least whole
    numbers of the two, of 256. ``after``: steps that the product is rounded to; None for none."""
    sizes = [int(np.prod(shape)) for shape in (left, right)]

    def body(builder: Builder, x: Any) -> Any:
        operands = []
        for shape, start, number in zip((left, right), (0, sizes[0]), least, strict=True):
            cut = builder.emit(relax.op.strided_slice(x, [0], [start], [start + int(np.prod(shape))]))
            whole = rounded(builder, builder.emit(relax.op.reshape(cut, shape)), 0.25, number, number + 255)
            operands.append(whole)
        product = relax.op.matmul(*operands)
        return product if after is None else rounded(builder, builder.emit(product), after, -128, 127)

    x = np.random.default_rng(sizes).normal(0, 20, sum(sizes)).astype(np.float32)
    return network((sum(sizes),), body), x


SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 8), (8, 5)),
    ((2, 3, 7), (2, 7, 4)),
    ((2, 3, 1), (1, 6)),
    ((1, 5, 9), (3, 9, 2)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
@examples(3)
@given(least=st.tuples(st.sampled_from([-255, -128, -77, 0]), st.sampled_from([-255, -128, -77, 0])))
def test_products_of_two_computed_values_are_exact(
    left: tuple[int, ...], right: tuple[int, ...], least: tuple[int, int]
) -> None:
    module, x = product_of_computed(left, right, least)
    assert count_products(Grids(module["main"]), parse_target(VNNI)) == ProductCounts(1)
    floats, integers = both(module, x)
    # All sums of floats are exact here: the steps are a quarter.
    np.testing.assert_array_equal(integers, floats)
    assert len(np.unique(integers)) > 1


@pytest.mark.parametrize("target", OTHER_OPERATORS.values(), ids=OTHER_OPERATORS)
@pytest.mark.parametrize("least", [(-255, 0), (0, -128), (-128, -77)])
def test_every_operator_computes_the_same_products_of_computed_values(least: tuple[int, int], target: str) -> None:
    module, x = product_of_computed((2, 3, 7), (2, 7, 4), least)
    use_kernel_passes()
    ours, theirs = (
        compile_host(relax.transform.LegalizeOps()(integer_products(module, parse_target(each))))(x)[0]
        for each in (target, VNNI)
    )
    np.testing.assert_array_equal(ours, theirs)


def test_a_rounded_product_of_computed_values_gives_bytes() -> None:
    module, x = product_of_computed((4, 16), (16, 8), (0, -128), after=2.0)
    kernels = kernels_of(integer_products(module, parse_target(VNNI)))
    assert sorted(kernels) == ["dequantize", "matmul", "pack", "quantize", "quantize", "requantize"]
    floats, integers = both(module, x)
    np.testing.assert_allclose(integers, floats, atol=2.0)
    assert (integers != floats).mean() < 0.05


def test_products_of_two_computed_values_are_counted_and_named() -> None:
    def body(builder: Builder, x: Any) -> Any:
        data = rounded(builder, x, 0.5, -128, 127)
        first = builder.emit(relax.op.matmul(data, relax.const(weights(np.random.default_rng(3), 8, 8))))
        return relax.op.matmul(first, relax.op.permute_dims(data))

    counts = count_products(Grids(network((3, 8), body)["main"]), parse_target(VNNI))
    reason = "both of their operands are computed, and one is not rounded to at most 256 levels"
    assert counts == ProductCounts(1, (FloatProduct("matmul 3x3", reason),))
