"""Values between kernels stay bytes where their readers can convert them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from tvm import relax

from devices.builds.executables import compile_host, kernel_calls
from devices.networks.graph.ir.calls import constant
from devices.networks.graph.low_precision.byte_kernels import dequantize, quantize
from devices.networks.graph.low_precision.byte_readers import keep_bytes
from tests.helpers.quantised_graphs import network

Array = npt.NDArray[Any]
Builder = relax.BlockBuilder
SHAPE = (2, 8, 16)


def quantized(builder: Builder, x: Any) -> Any:
    """``x`` as bytes and back."""
    one, half, zero = (constant(np.array([number], np.float32)) for number in (1.0, 0.5, 100.0))
    return builder.emit_te(dequantize, builder.emit_te(quantize, x, one, zero, 255), half, zero)


def fused(module: Any, keeps_bytes: bool) -> Any:
    transform = relax.transform
    module = transform.AnnotateTIROpPattern()(transform.LegalizeOps()(module))
    module = transform.Normalize()(transform.FuseOps()(module))
    module = keep_bytes(module) if keeps_bytes else module
    relax.analysis.well_formed(module)  # raises an error otherwise
    return tvm.transform.Sequential([transform.FuseTIR(), transform.DeadCodeElimination(["main"])])(module)


def between(module: Any) -> list[str]:
    """Types of what the kernels of ``main`` give."""
    return [str(call.ty.dtype) for call in kernel_calls(module["main"])]


def softmax_of_a_product(builder: Builder, x: Any) -> Any:
    weight = relax.const(np.random.default_rng(0).normal(0, 20, (16, 16)).astype(np.float32))
    return relax.op.nn.softmax(quantized(builder, builder.emit(relax.op.matmul(x, weight))))


def residual_of_two_products(builder: Builder, x: Any) -> Any:
    rng = np.random.default_rng(0)
    sides = [
        quantized(
            builder,
            builder.emit(relax.op.matmul(x, relax.const(rng.normal(0, 20, (16, 16)).astype(np.float32)))),
        )
        for _ in range(2)
    ]
    return relax.op.add(*sides)


def mean_of_a_product(builder: Builder, x: Any) -> Any:
    weight = relax.const(np.random.default_rng(0).normal(0, 20, (16, 16)).astype(np.float32))
    return relax.op.mean(quantized(builder, builder.emit(relax.op.matmul(x, weight))), [1])


def two_readers(builder: Builder, x: Any) -> Any:
    weight = relax.const(np.random.default_rng(0).normal(0, 20, (16, 16)).astype(np.float32))
    data = quantized(builder, builder.emit(relax.op.matmul(x, weight)))
    return relax.op.add(builder.emit(relax.op.mean(data, [1], keepdims=True)), builder.emit(relax.op.nn.softmax(data)))


@pytest.mark.parametrize(
    ("body", "floats"),
    [
        (softmax_of_a_product, 1),
        (mean_of_a_product, 1),
        (residual_of_two_products, 1),
        (two_readers, 2),
    ],
)
def test_readers_convert(body: Callable[[Builder, Any], Any], floats: int) -> None:
    module = network(SHAPE, body)
    before, after = fused(module, False), fused(module, True)
    assert between(after).count("uint8") == between(before).count("uint8") + 1
    assert between(after).count("float32") == between(before).count("float32") - 1 == floats
    x = np.random.default_rng(1).normal(0, 4, SHAPE).astype(np.float32)
    (expected,), (got,) = compile_host(before)(x), compile_host(after)(x)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def product_reads(builder: Builder, x: Any) -> Any:
    """A product converts each number once for each of its columns."""
    data = softmax_of_a_product(builder, x)
    return relax.op.matmul(
        quantized(builder, builder.emit(relax.op.multiply(builder.emit(data), relax.const(200.0)))),
        relax.const(np.eye(16, dtype=np.float32)),
    )


def output_reads(builder: Builder, x: Any) -> Any:
    weight = relax.const(np.random.default_rng(0).normal(0, 20, (16, 16)).astype(np.float32))
    return quantized(builder, builder.emit(relax.op.matmul(x, weight)))


def test_products_and_outputs_get_floats() -> None:
    kept = between(fused(network(SHAPE, product_reads), True))
    assert kept == ["uint8", "float32", "float32"], "the softmax reads bytes, the product does not"
    assert between(fused(network(SHAPE, output_reads), True)) == ["float32"]


def test_windows_of_uneven_sizes_get_floats() -> None:
    """Extents of windows along an axis whose size they do not divide are expressions. Other values stay bytes."""

    def body(builder: Builder, x: Any) -> Any:
        first, second = (
            relax.const(np.random.default_rng(size).normal(0, 20, (size, size)).astype(np.float32)) for size in (16, 5)
        )
        image = builder.emit(relax.op.expand_dims(x, 0))
        data = quantized(builder, builder.emit(relax.op.matmul(image, first)))
        pooled = builder.emit(relax.op.nn.adaptive_avg_pool2d(data, (4, 5)))
        return relax.op.nn.softmax(quantized(builder, builder.emit(relax.op.matmul(pooled, second))))

    kept = between(fused(network(SHAPE, body), True))
    assert kept == ["float32", "float32", "float32", "uint8", "float32"], "the pooling reads floats, the softmax bytes"
