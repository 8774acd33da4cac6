"""An operator of TensorIR on four bytes at once.

A tensor of bytes whose last axis is a multiple of four is seen as one of 32-bit numbers, each of which holds four
bytes, the first in the lowest bits. ``dot4(a, b)`` is the sum of the four products of the unsigned bytes of ``a`` with
the signed bytes of ``b``, exactly. An int8 convolution is then a convolution of 32-bit numbers with ``dot4`` in place
of the multiplication: sketch rules, layouts of weights and the analysis of kernels need know no more of it.
:mod:`devices.builds.dot_products` lowers it.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call

DOT4 = "tirx.fleet_tune.dot4"
"""Name of the operator."""
_PURE = 2  # tvm.tirx.CallEffectKind

tvm.ir.register_op_attr(DOT4, "TCallEffectKind", _PURE)
tvm.ir.register_op_attr(DOT4, "TVectorizable", True)


def dot4(a: Any, b: Any) -> Any:
    """Return the sum of the products of four unsigned bytes with four signed bytes; ``a`` and ``b`` are int32."""
    return tirx.call_intrin("int32", DOT4, a, b)


def is_dot4(value: Any) -> bool:
    """Return true for a call of :func:`dot4`."""
    return isinstance(value, Call) and getattr(value.op, "name", "") == DOT4
