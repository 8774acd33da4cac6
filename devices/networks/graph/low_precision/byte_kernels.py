"""Kernels in bytes of quantised networks: convolutions and products with sums in 32 bits, and the conversions around
them.

Data is unsigned bytes, 0 for the least number of a grid. Neighbouring bytes are packed into one number of 32 bits for
an operator of :mod:`devices.sketches.byte_operators`.

Scales and zero points are arguments, as weights are. So layers that differ only in them are one task, and a network
that is quantised anew finds its records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, te, tirx

from devices.networks.graph.low_precision.packed_sums import Packing
from devices.sketches.byte_operators import IntegerDot, clamped

Integers = npt.NDArray[np.int32]
_SIGNED = 128
"""Difference between an unsigned byte and the signed byte of the same rank."""


def quantize(x: te.Tensor, inverse: te.Tensor, zero: te.Tensor | None, levels: int) -> te.Tensor:
    """Return floats as bytes, from 0 to ``levels``. NaN is 0, as in ONNX Runtime.

    ``inverse``: the inverse of the scale. ``zero``: the zero point; None for 0. Both are tensors of one number, as are
    all scales and zero points in this module.
    """
    return te.compute(x.shape, lambda *at: _byte(x[at] * inverse[0], zero, 0, levels), name="quantize")


def requantize(
    x: te.Tensor, factors: te.Tensor, offsets: te.Tensor, zero: te.Tensor | None, low: float, high: float
) -> te.Tensor:
    """Return integer sums as bytes between two bounds: each sum times the factor of its channel (the last axis), plus
    the channel's offset. ``zero``: the zero point; None for 0."""

    def byte(*at: Any) -> Any:
        return _byte(x[at].astype("float32") * factors[at[-1]] + offsets[at[-1]], zero, low, high)

    return te.compute(x.shape, byte, name="requantize")


def _byte(value: Any, zero: te.Tensor | None, low: float, high: float) -> Any:
    rounded = tirx.round(value)
    return clamped(rounded if zero is None else rounded + zero[0], float(low), float(high)).astype("uint8")


def dequantize(x: te.Tensor, scale: te.Tensor, zero: te.Tensor | None) -> te.Tensor:
    """Return bytes as floats: ``(byte - zero) * scale``."""

    def number(*at: Any) -> Any:
        byte = x[at].astype("float32")
        return (byte if zero is None else byte - zero[0]) * scale[0]

    return te.compute(x.shape, number, name="dequantize")


def widen(x: te.Tensor, least: int, dtype: str) -> te.Tensor:
    """Return bytes as whole numbers of a type: byte 0 is ``least``."""

    def number(*at: Any) -> Any:
        byte = x[at].astype(dtype)
        return byte + tirx.const(least, dtype) if least else byte

    return te.compute(x.shape, number, name="widen")


def scale(x: te.Tensor, factors: te.Tensor) -> te.Tensor:
    """Return integer sums as floats: each sum times the factor of its channel (the last axis)."""
    return te.compute(x.shape, lambda *at: x[at].astype("float32") * factors[at[-1]], name="scale")


def from_signed(value: Any) -> Any:
    """Return signed bytes plus 128, as unsigned bytes."""
    wide = relax.op.add(relax.op.astype(value, "int16"), relax.const(128, "int16"))
    return relax.op.astype(wide, "uint8")


def _together(data: te.Tensor, at: Sequence[Any], group: Any, zero: int, dot: IntegerDot) -> Any:
    """Return a group of neighbouring bytes, as many as the operator has terms, packed into one number. Bytes after the
    last are ``zero``."""
    count = int(data.shape[-1])
    number = tirx.const(_repeated(dot.least, dot), "int32")
    for lane in range(dot.terms):
        channel = group * dot.terms + lane
        value = data[(*at, channel)].astype("int32") << tirx.const(dot.bits * lane, "int32")
        if count % dot.terms:
            value = tirx.if_then_else(channel < count, value, tirx.const(_signed(zero << dot.bits * lane), "int32"))
        # ``dot.least`` is 0, or it flips the highest bit of a byte.
        number = number ^ value
    return number


def pack(data: te.Tensor, dot: IntegerDot) -> te.Tensor:
    """Return unsigned bytes ``(..., k, n)`` less 128, as signed bytes. Each number packs as many as ``dot`` has terms:
    ``(..., ceil(k / terms), n)``, as :func:`~devices.networks.graph.low_precision.packed_sums.packed` does."""
    *outer, count, columns = (int(extent) for extent in data.shape)

    def together(*at: Any) -> Any:
        number = tirx.const(0, "int32")
        for lane in range(dot.terms):
            row = at[-2] * dot.terms + lane
            signed = data[(*at[:-2], row, at[-1])].astype("int32") - _SIGNED
            value = (signed & tirx.const((1 << dot.bits) - 1, "int32")) << tirx.const(dot.bits * lane, "int32")
            if count % dot.terms:
                value = tirx.if_then_else(row < count, value, tirx.const(0, "int32"))
            number = number | value
        return number

    return te.compute((*outer, -(-count // dot.terms), columns), together, name="pack")


def row_sums(data: te.Tensor, factor: te.Tensor, rest: te.Tensor) -> te.Tensor:
    """Return the sums of the rows ``(..., m, k)`` of unsigned bytes, each times ``factor`` plus ``rest``: ``(..., m,
    1)``. ``factor`` and ``rest`` are tensors of one int32."""
    return _sums(data, factor, rest, -1)


def column_sums(data: te.Tensor, factor: te.Tensor, rest: te.Tensor) -> te.Tensor:
    """Return the sums of the columns ``(..., k, n)`` of unsigned bytes, as :func:`row_sums`: ``(..., 1, n)``."""
    return _sums(data, factor, rest, -2)


def _sums(data: te.Tensor, factor: te.Tensor, rest: te.Tensor, axis: int) -> te.Tensor:
    at = len(data.shape) + axis
    k = te.reduce_axis((0, data.shape[at]), name="k")

    def total(*place: Any) -> Any:
        return te.sum(data[(*place[:at], k, *place[at + 1 :])].astype("int32"), axis=k)

    shape = [*data.shape[:at], 1, *data.shape[at + 1 :]]
    sums = te.compute(shape, total, name="sums")
    return te.compute(shape, lambda *place: sums[place] * factor[0] + rest[0], name="line")


def _repeated(number: int, dot: IntegerDot) -> int:
    """Return a 32-bit number that holds ``number`` in each of its lanes."""
    bits = number & (1 << dot.bits) - 1
    return _signed(sum(bits << dot.bits * lane for lane in range(dot.terms)))


def _signed(number: int) -> int:
    """Return 32 bits as a signed number."""
    return number - (number >> 31 << 32)


def packing(zero: int, dot: IntegerDot) -> Packing:
    """Return the packing of bytes for ``dot``: one number holds a byte for each of its terms. The byte ``zero`` pads
    the data."""
    nothing = tirx.const(_repeated(zero + dot.least, dot), "int32")
    return Packing(dot.terms, lambda data, at, group: _together(data, at, group, zero, dot), nothing, dot)


def single(zero: int, dot: IntegerDot) -> Packing:
    """Return the packing in which each byte is a group of its own. The byte ``zero`` pads the data.

    An operator of unsigned numbers multiplies a byte by a weight and adds the product in one instruction (its other
    terms are zero). A multiplication and an addition would be two instructions.
    """

    def multiply(value: Any, weight: Any) -> Any:
        number = value.astype("int32")
        return dot(number, weight) if dot.least == 0 else number * weight

    return Packing(1, lambda data, at, group: data[(*at, group)], tirx.const(zero, "uint8"), multiply)
