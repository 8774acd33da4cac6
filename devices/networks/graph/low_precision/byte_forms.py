"""Forms of the bytes of a product: how they are stored and multiplied.

==========  ========================================  =====================================================
form        data                                      weights
==========  ========================================  =====================================================
grouped     several bytes in one number of 32 bits    the same; an operator of
                                                      :mod:`devices.sketches.byte_operators` multiplies both
single      unsigned bytes                            numbers of 32 bits: depthwise convolutions
signed      signed bytes, 128 less                    signed bytes: tensor cores, which TVM's rule finds
==========  ========================================  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from devices.networks.graph.ir.calls import constant
from devices.networks.graph.low_precision.byte_kernels import Integers, pack, packing, single
from devices.networks.graph.low_precision.packed_sums import Packing, packed
from devices.sketches.byte_operators import IntegerDot

TILE = 16
"""Rows, columns and terms of the products that tensor cores multiply at once."""


@dataclass(frozen=True)
class ByteForm:
    """A form of the table above."""

    packing: Packing
    least: int
    """Number that the data's unsigned byte 0 stands for in this form."""
    weights: Callable[[Integers], Any]
    """Takes weights as whole numbers; returns them as a constant."""
    operand: Callable[[te.Tensor], te.Tensor]
    """Takes the unsigned bytes of a right operand that is computed. Returns them as weights, less 128."""
    operand_name: str
    """Name of the kernel of ``operand``."""


def byte_form(
    zero: int, dot: IntegerDot, tensor_cores: bool, *, rows: int, terms: int, columns: int, groups: int = 1
) -> ByteForm:
    """Return the form of a product.

    Args:
        zero: unsigned byte that pads the data, as it stands for zero.
        dot: operator that the target has an instruction for.
        tensor_cores: true for a target whose tensor cores multiply bytes.
        rows: positions of the result (without its channels), which share the weights.
        terms: input channels that each sum reads at one position.
        columns: channels of the result.
        groups: groups of a convolution.
    """
    if tensor_cores and groups == 1 and rows >= TILE and terms % TILE == 0 and columns % TILE == 0:
        return _signed(zero)
    if groups == 1 or terms % dot.terms == 0:
        return ByteForm(
            packing(zero, dot),
            dot.least,
            lambda numbers: constant(packed(numbers.astype(f"<i{dot.bits // 8}"), dot.terms)),
            lambda data: pack(data, dot),
            "pack",
        )
    return ByteForm(single(zero, dot), 0, constant, _less, "signed")


def _signed(zero: int) -> ByteForm:
    numbers = Packing(
        terms=1,
        group=lambda data, at, place: _less_128(data[(*at, place)]),
        nothing=tirx.const(zero - 128, "int8"),
        multiply=lambda number, weight: number.astype("int32") * weight.astype("int32"),
    )
    return ByteForm(numbers, -128, lambda weights: constant(weights.astype(np.int8)), _less, "signed")


def _less(data: te.Tensor) -> te.Tensor:
    return te.compute(data.shape, lambda *at: _less_128(data[at]), name="signed")


def _less_128(byte: Any) -> Any:
    return (byte.astype("int32") - 128).astype("int8")
