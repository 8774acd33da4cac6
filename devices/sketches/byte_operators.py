"""Operators of TensorIR for quantised networks.

A tensor of bytes whose last axis is a multiple of four is seen as one of 32-bit numbers, each of which holds four
bytes, the first in the lowest bits. ``dot4(a, b)`` is the sum of the four products of the unsigned bytes of ``a`` with
the signed bytes of ``b``, exactly. An int8 convolution is then a convolution of 32-bit numbers with ``dot4`` in place
of the multiplication: sketch rules, layouts of weights and the analysis of kernels need know no more of it.
:mod:`devices.builds.byte_instructions` lowers it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call

DOT4 = "tirx.fleet_tune.dot4"
"""Name of the operator."""
_PURE = 2  # tvm.tirx.CallEffectKind

CLAMPED = "tirx.fleet_tune.clamped"
for _name in (DOT4, CLAMPED):
    tvm.ir.register_op_attr(_name, "TCallEffectKind", _PURE)
    tvm.ir.register_op_attr(_name, "TVectorizable", True)


def dot4(a: Any, b: Any) -> Any:
    """Return the sum of the products of four unsigned bytes with four signed bytes; ``a`` and ``b`` are int32."""
    return tirx.call_intrin("int32", DOT4, a, b)


def clamped(x: Any, low: float, high: float) -> Any:
    """Return a float32 between two bounds, and the lower bound for NaN. Sketch rules inline no select, and a maximum
    hands NaN on."""
    bounds = (tirx.const(bound, "float32") for bound in (low, high))
    return tirx.call_intrin("float32", CLAMPED, x, *bounds)


def is_clamped(value: Any) -> bool:
    """Return true for a call of :func:`clamped`."""
    return isinstance(value, Call) and getattr(value.op, "name", "") == CLAMPED


def is_dot4(value: Any) -> bool:
    """Return true for a call of :func:`dot4`."""
    return isinstance(value, Call) and getattr(value.op, "name", "") == DOT4
