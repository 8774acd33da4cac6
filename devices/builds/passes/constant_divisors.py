"""Replacement of float divisions by a constant with products with its reciprocal.

A vector division takes nine times as long as a product (Zen 4, 512 bits). A compiler may not replace it, because
results differ by one unit in the last place. A hard swish divides every element by six.

Kernels that round keep their divisions, because a value close to a rounding boundary could fall on its other side.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Call
from tvm.tirx import Broadcast, Cast, Div, FloatImm, PrimFunc, const
from tvm_ffi import structural_map, structural_walk

_ROUNDING = frozenset(f"tirx.{name}" for name in ("floor", "ceil", "round", "nearbyint", "trunc", "fmod"))
_SMALLEST = {"float32": float(np.finfo(np.float32).tiny), "float64": sys.float_info.min}
"""Smallest normal number of the types whose divisions are replaced."""


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def multiply_by_reciprocals(function: PrimFunc, _module: Any, _context: Any) -> PrimFunc:
    """Pass over kernels of CPUs and GPUs, before their intrinsics are lowered."""
    if _rounds(function):
        return function
    return function.with_body(structural_map(function.body, (Div, _as_product)))


def _as_product(division: Any) -> Any:
    divisor = division.b
    lanes = divisor.lanes if isinstance(divisor, Broadcast) else None
    if lanes is not None:
        divisor = divisor.value
    if not isinstance(divisor, FloatImm):
        return division
    value, smallest = float(divisor.value), _SMALLEST.get(str(divisor.ty))
    if smallest is None or not math.isfinite(value) or not smallest <= abs(value) <= 1 / smallest:
        return division
    reciprocal = const(1 / value, str(divisor.ty))
    return division.a * (reciprocal if lanes is None else Broadcast(reciprocal, lanes))


def _rounds(function: PrimFunc) -> bool:
    """Return true if a kernel rounds floats to integers."""
    found: list[bool] = []

    def call(each: Any) -> None:
        found.append(getattr(each.op, "name", None) in _ROUNDING)

    def cast(each: Any) -> None:
        found.append("float" in str(each.value.ty) and "float" not in str(each.ty))

    structural_walk(function.body, [(Call, call), (Cast, cast)])
    return any(found)
