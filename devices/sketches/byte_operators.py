"""Operators of TensorIR for quantised networks.

A tensor of bytes whose last axis is a multiple of four is viewed as a tensor of 32-bit numbers. Each number holds four
bytes, the first in the lowest bits. ``DOT4(a, b)`` is the exact sum of the four products of the unsigned bytes of ``a``
with the signed bytes of ``b``. An int8 convolution is then a convolution of 32-bit numbers with ``DOT4`` instead of the
multiplication. Sketch rules, layouts of weights and the analysis of kernels need to know nothing else about int8.

Processors differ in the products that one instruction computes, so there are further operators: :data:`SIGNED_DOT4` has
signed bytes on both sides, :data:`INT16_DOT2` has two 16-bit numbers in each 32-bit number.
:mod:`devices.builds.passes.byte_instructions` chooses the operator for a target, and lowers all operators for every
target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call

_PURE = 2  # tvm.tirx.CallEffectKind
_BITS = 32


@dataclass(frozen=True)
class IntegerDot:
    """An operator that multiplies the integers packed in one 32-bit number by those packed in another, and adds the
    products."""

    name: str
    terms: int
    """Integers packed in each 32-bit number, the first in the lowest bits."""
    least: int
    """Least value on the left. Values on the left range over 256 integers from it."""
    signed: bool
    """True if the left numbers are stored as signed integers of :attr:`bits` bits. The right numbers always are, and
    range from -128 to 127."""

    def __call__(self, a: Any, b: Any) -> Any:
        """Return the sum of the products of ``a`` with ``b``. All three are int32."""
        return tirx.call_intrin("int32", self.name, a, b)

    @property
    def bits(self) -> int:
        """Bits of each packed number."""
        return _BITS // self.terms

    @property
    def range(self) -> tuple[int, int]:
        """Least and greatest result."""
        products = [a * b for a in (self.least, self.least + 255) for b in (-128, 127)]
        return self.terms * min(products), self.terms * max(products)


DOT4 = IntegerDot("tirx.fleet_tune.dot4", 4, 0, signed=False)
"""Unsigned by signed bytes."""
SIGNED_DOT4 = IntegerDot("tirx.fleet_tune.signed_dot4", 4, -128, signed=True)
"""Signed by signed bytes."""
INT16_DOT2 = IntegerDot("tirx.fleet_tune.int16_dot2", 2, 0, signed=True)
"""Bytes stored in 16 bits each: 0 to 255 by -128 to 127."""
INTEGER_DOTS = (DOT4, SIGNED_DOT4, INT16_DOT2)

CLAMPED = "tirx.fleet_tune.clamped"
for _name in (*(each.name for each in INTEGER_DOTS), CLAMPED):
    tvm.ir.register_op_attr(_name, "TCallEffectKind", _PURE)
    tvm.ir.register_op_attr(_name, "TVectorizable", True)
    tvm.ir.register_op_attr(_name, "TScriptPrinterName", _name.removeprefix("tirx."))


def clamped(x: Any, low: float, high: float) -> Any:
    """Return a float32 clamped to two bounds; NaN becomes the lower bound. It is an operator of its own because sketch
    rules do not inline a select, and a maximum passes NaN on."""
    bounds = (tirx.const(bound, "float32") for bound in (low, high))
    return tirx.call_intrin("float32", CLAMPED, x, *bounds)


def is_clamped(value: Any) -> bool:
    """Return true for a call of :func:`clamped`."""
    return isinstance(value, Call) and getattr(value.op, "name", "") == CLAMPED


def integer_dot(value: Any) -> IntegerDot | None:
    """Return the operator that ``value`` calls; None for anything else."""
    name = getattr(value.op, "name", "") if isinstance(value, Call) else ""
    return _BY_NAME.get(name)


_BY_NAME = {each.name: each for each in INTEGER_DOTS}
