"""The products of a network that a precision may convert."""

from __future__ import annotations

from typing import Any

from tvm.ir import Call

from devices.networks.graph.ir.calls import operator_name

MATMUL = "relax.matmul"
_PRODUCTS = frozenset({MATMUL, *(f"relax.nn.conv{n}d" for n in (1, 2, 3))})


def is_product(value: Any) -> bool:
    """Return true for a product or convolution whose operands and result are float32."""
    return operator_name(value) in _PRODUCTS and all(str(each.ty.dtype) == "float32" for each in (*value.args, value))


def products_of(main: Any) -> list[Call]:
    """Return all products and convolutions of a function, in order. Their positions do not change when operands change
    type."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    return [binding.value for binding in bindings if operator_name(binding.value) in _PRODUCTS]
