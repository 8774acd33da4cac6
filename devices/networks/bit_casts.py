"""The bits of numbers as numbers of another type of the same width."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi


def bit_cast(builder: Any, value: Any, dtype: str) -> Any:
    """Emit, with Relax's block ``builder``, the bits of ``value`` read as ``dtype``."""
    if "bool" in (dtype, str(value.ty.dtype)):
        return relax.op.astype(value, dtype)  # a byte of 0 or 1, which LLVM computes with as a bit

    def same_bits(data: Any) -> Any:
        return te.compute(
            data.shape, lambda *at: tirx.reinterpret(dtype, data(*at)), name="bit_cast", tag=topi.tag.ELEMWISE
        )

    return builder.emit_te(same_bits, value)
