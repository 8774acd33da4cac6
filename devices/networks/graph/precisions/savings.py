"""An estimate of the time that other precisions save in the products of a network.

A product takes the time of its arithmetic, or of reading its operands and writing its result, whichever is longer. The
unit is the time of one operation of float32; reading a byte takes :data:`OPERATIONS_PER_BYTE`.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm.ir import Call

from devices.builds.passes.half_instructions import has_fast_dot2
from devices.networks.graph.ir.calls import operator_name, shown_product
from devices.networks.graph.ir.tensors import shape_of
from devices.networks.graph.precisions.products import MATMUL, is_product, products_of
from devices.networks.graph.precisions.weight_only import OPERATIONS_PER_BYTE, takes_its_weights_time
from fleet_tune.base.precision import ConvertibleProduct, Precision

_SPEED = 2.0
"""Speed of products of 16 bits relative to float32: an instruction for pairs computes two products instead of one;
tensor cores are at least twice as fast as the other cores."""
_WIDTH = 4
"""Bytes of a float32."""


def convertible_products(main: Any, target: tvm.target.Target) -> tuple[ConvertibleProduct, ...]:
    """Return the products of ``main`` that another precision makes faster on ``target``."""
    half, speed = _half(target)
    bound = {each.var: each.value for block in main.body.blocks for each in block.bindings}
    found = []
    for at, call in enumerate(products_of(main)):
        shapes = [shape_of(each) for each in (*call.args[:2], call)]
        if not is_product(call) or None in shapes:
            continue
        data, weight, result = (math.prod(shape or ()) for shape in shapes)
        terms = _terms(call)
        operations, read = 2.0 * result * terms, _WIDTH * (data + weight + result) * OPERATIONS_PER_BYTE
        now = max(operations, read)
        # With an odd number of terms, as in depthwise convolutions (one term), a pair would span two groups.
        in_pairs = int(getattr(call.attrs, "groups", 1)) == 1 or terms % 2 == 0
        times = {half: max(operations / (speed if in_pairs else 1), read / 2)}
        if takes_its_weights_time(call, bound.get(call.args[1], call.args[1])):
            times[Precision.INT8W] = max(operations, read - (_WIDTH - 1) * weight * OPERATIONS_PER_BYTE)
        savings = sorted(((each, now - secs) for each, secs in times.items() if secs < now), key=lambda each: -each[1])
        if savings:
            found.append(ConvertibleProduct(at, shown_product(call), tuple(savings)))
    return tuple(found)


def _half(target: tvm.target.Target) -> tuple[Precision, float]:
    """Return the precision of 16 bits that a target multiplies in, and its speed relative to float32."""
    if target.kind.name == "cuda":
        return Precision.FP16, _SPEED
    return Precision.BF16, _SPEED if has_fast_dot2(target) else 1


def _terms(call: Call) -> int:
    """Return the terms of each sum."""
    weight = shape_of(call.args[1]) or ()
    if operator_name(call) == MATMUL:
        return (shape_of(call.args[0]) or (1,))[-1]
    layout = str(call.attrs.kernel_layout)
    return math.prod(extent for axis, extent in zip(layout, weight, strict=True) if axis != "O")
