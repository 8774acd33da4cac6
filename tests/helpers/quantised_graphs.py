"""Networks of Relax whose values are rounded, as quantisers leave them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

Builder = relax.BlockBuilder


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
