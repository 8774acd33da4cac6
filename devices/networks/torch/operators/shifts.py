"""torch's shifts of integers, as used to unpack weights of few bits.

Importing this module loads torch and TVM.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import fx
from tvm import relax

Convert = Callable[[fx.Node], Any]


def translations(importer: Any) -> dict[str, Convert]:
    """Return translations by the operators' names, for TVM's ``importer`` of torch's programs."""

    def shifted(node: fx.Node, left: bool) -> Any:
        """Shift. If the distance is negative, or not less than the number of bits, the result is 0, or -1 for a right
        shift of a negative number."""
        dtype: torch.dtype = node.meta["val"].dtype
        name, bits = importer._convert_data_type(dtype), torch.iinfo(dtype).bits

        def number(value: int) -> Any:
            return relax.const(value, name)

        def emit(expression: Any) -> Any:
            return importer.block_builder.emit(expression)

        def operand(argument: Any) -> Any:
            if not isinstance(argument, fx.Node):
                return number(argument)
            value = importer.env[argument]
            return value if str(value.ty.dtype) == name else emit(relax.op.astype(value, name))

        shift = relax.op.left_shift if left else relax.op.right_shift
        data, distance = node.args
        value = operand(data)
        emptied = number(0) if left or not dtype.is_signed else shift(value, number(bits - 1))
        if isinstance(distance, int):
            if 0 <= distance < bits:
                return emit(shift(value, number(distance)))
            return emit(relax.op.multiply(value, number(0)) if left or not dtype.is_signed else emptied)
        by = operand(distance)
        inside = emit(relax.op.less(by, number(bits)))
        if dtype.is_signed:
            inside = emit(relax.op.logical_and(inside, emit(relax.op.greater_equal(by, number(0)))))
        kept = emit(relax.op.where(inside, by, number(0)))
        return emit(relax.op.where(inside, emit(shift(value, kept)), emptied))

    left, right = partial(shifted, left=True), partial(shifted, left=False)
    table: dict[str, Convert] = {}
    for kind, convert in (("left", left), ("right", right)):
        for overload in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"):
            table[f"bitwise_{kind}_shift.{overload}"] = convert
        for overload in ("Tensor", "Scalar"):
            table[f"__{kind[0]}shift__.{overload}"] = convert
    return table
