"""Operators of TensorIR for products of bfloat16.

``pair(a, b)`` packs two neighbouring operands of a sum into one 32-bit number, the first in the lower half. ``dot2(x,
y)`` is the sum of the two products of two such pairs, as float32. A product of bfloat16 matrices is then a product of
matrices of 32-bit numbers, with sums of half the length and ``dot2`` instead of the multiplication. Sketch rules,
layouts of weights and the analysis of kernels need to know nothing else about bfloat16.
:mod:`devices.builds.passes.half_instructions` lowers both operators.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm_ffi import structural_walk

DOT2 = "tirx.fleet_tune.dot2"
PAIR = "tirx.fleet_tune.pair"
PAIRED = "bfloat16"
"""Type of the numbers of a pair."""
_PURE = 2  # tvm.tirx.CallEffectKind

for _name in (DOT2, PAIR):
    tvm.ir.register_op_attr(_name, "TCallEffectKind", _PURE)
    tvm.ir.register_op_attr(_name, "TVectorizable", True)
    tvm.ir.register_op_attr(_name, "TScriptPrinterName", _name.removeprefix("tirx."))


def dot2(x: Any, y: Any) -> Any:
    """Return the sum of the products of two pairs, as float32."""
    return tirx.call_intrin("float32", DOT2, x, y)


def pair(first: Any, second: Any) -> Any:
    """Return two numbers of bfloat16 as one of int32."""
    return tirx.call_intrin("int32", PAIR, first, second)


def is_dot2(value: Any) -> bool:
    """Return true for a call of :func:`dot2`."""
    return isinstance(value, Call) and getattr(value.op, "name", "") == DOT2


def is_pair(value: Any) -> bool:
    """Return true for a call of :func:`pair`."""
    return isinstance(value, Call) and getattr(value.op, "name", "") == PAIR


def holding_pairs(body: Any) -> list[Any]:
    """Return the buffers of a program whose elements are multiplied as pairs."""
    found: list[Any] = []

    def find(call: Call) -> None:
        if is_dot2(call):
            found.extend(operand.source for operand in call.args if isinstance(operand, TensorLoad))

    structural_walk(body, [(Call, find)])
    return found
