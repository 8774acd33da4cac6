"""Networks of Relax whose values are rounded, as quantisers leave them, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from devices.builds.executables import compile_host, kernel_calls
from devices.networks.graph.low_precision.integer_products import integer_products
from devices.targets import parse_target, resolve_target
from fleet_tune.base.domain import DeviceClass

Builder = relax.BlockBuilder
Array = npt.NDArray[Any]
VNNI = resolve_target({"kind": "llvm", "mcpu": "znver4", "mtriple": "x86_64-linux-gnu", "num-cores": 2})
CPU = DeviceClass("cpu", resolve_target("native", 2))
WITHOUT = resolve_target({"kind": "llvm", "mcpu": "cortex-a72", "mtriple": "aarch64-linux-gnu", "num-cores": 2})
OTHER_OPERATORS = {
    "pairs": resolve_target({"kind": "llvm", "mcpu": "haswell", "mtriple": "x86_64-linux-gnu", "num-cores": 2}),
    "signed": resolve_target({"kind": "llvm", "mcpu": "cortex-a78", "mtriple": "aarch64-linux-gnu", "num-cores": 2}),
}
"""Targets whose products are other ones than VNNI's. Their graphs compute the same on any CPU."""


def network(shape: tuple[int, ...], body: Callable[[Builder, Any], Any]) -> Any:
    """A module whose ``main`` has one float input, and returns what ``body`` emits."""
    builder = Builder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(body(builder, x))
        builder.emit_func_output(result)
    return relax.transform.Normalize()(builder.get())


def rounded(builder: Builder, x: Any, scale: float, low: int, high: int) -> Any:
    """``clip(round(x / scale), low, high) * scale``."""
    whole = builder.emit(relax.op.round(builder.emit(relax.op.divide(x, relax.const(scale, "float32")))))
    return builder.emit(relax.op.multiply(builder.emit(relax.op.clip(whole, low, high)), relax.const(scale, "float32")))


def as_bytes(builder: Builder, x: Any) -> Any:
    """``x``, rounded to unsigned bytes."""
    whole = builder.emit(relax.op.clip(builder.emit(relax.op.round(x)), 0, 255))
    return builder.emit(relax.op.astype(whole, "uint8"))


def weights(rng: np.random.Generator, *shape: int, least: int = -128, most: int = 127) -> Array:
    """Whole numbers of eight bits times a factor of each output channel, which is the last axis."""
    factors = rng.uniform(0.5, 2.0, shape[-1]) / 127
    return (rng.integers(least, most + 1, shape) * factors).astype(np.float32)


def in_integers(module: Any) -> int:
    """The number of products in integers that ``main`` has after the rewriting."""
    new = integer_products(module, parse_target(VNNI))
    return sum(call.args[0].name_hint.startswith(("conv", "matmul")) for call in kernel_calls(new["main"]))


def kernels_of(module: Any) -> list[str]:
    """The kernels that ``main`` calls, without the numbers behind their names."""
    return [call.args[0].name_hint.rstrip("0123456789") for call in kernel_calls(module["main"])]


def both(module: Any, x: Array) -> tuple[Array, Array]:
    """The result in floats and in integers."""
    ours = integer_products(module, parse_target(VNNI))
    results = [compile_host(relax.transform.LegalizeOps()(each))(x)[0] for each in (module, ours)]
    return results[0], results[1]


def product_of(low: int, high: int, weight: Array) -> Callable[[Builder, Any], Any]:
    return lambda builder, x: relax.op.matmul(rounded(builder, x, 0.5, low, high), relax.const(weight))
