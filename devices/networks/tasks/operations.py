"""Counts of the float operations of kernels."""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm.s_tir.analysis import estimate_tir_flops
from tvm_ffi import structural_walk

from devices.sketches.byte_operators import integer_dot
from devices.sketches.description.accesses import leaf_blocks
from devices.sketches.half_operators import is_dot2


def flop_of(function: Any) -> float:
    """Return the float operations of one run of a kernel over fixed shapes."""
    return float(estimate_tir_flops(tvm.IRModule({"main": function}))) + _dot_products(function)


def _dot_products(function: Any) -> int:
    """Return the number of calls in a run of :class:`devices.sketches.byte_operators.IntegerDot` and
    :func:`devices.sketches.half_operators.dot2`. TVM's estimate counts only the additions of their results. Each call
    counts as one multiplication of float32."""
    found: list[Any] = []
    count = 0

    def find(call: tvm.ir.Call) -> None:
        if integer_dot(call) or is_dot2(call):
            found.append(call)

    for block in leaf_blocks(function).values():
        found.clear()
        structural_walk(block.body, [(tvm.ir.Call, find)])
        if found:
            count += len(found) * math.prod(int(axis.dom.extent) for axis in block.iter_vars)
    return count
