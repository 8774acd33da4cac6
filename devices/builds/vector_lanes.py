"""Vectors of TensorIR in parts as wide as an instruction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import IntImm, Shuffle


def dtype_of(value: Any) -> str:
    """Return the type of an expression, with its lanes."""
    return str(tvm.DataType(str(value.ty)))


def lanes_of(value: Any) -> int:
    """Return the number of lanes of an expression."""
    return int(tvm.DataType(str(value.ty)).lanes)


def by_parts(instruction: Callable[..., Any], operands: Sequence[Any], most: int) -> Any:
    """Return ``instruction(*operands)``, applied to parts of ``most`` lanes where the vectors are longer; their lanes
    are a multiple of it then."""
    lanes = lanes_of(operands[0])
    if lanes <= most:
        return instruction(*operands)
    parts = [instruction(*(_part(each, at, most) for each in operands)) for at in range(lanes // most)]
    return Shuffle(parts, [IntImm("int32", at) for at in range(lanes)])


def _part(value: Any, at: int, count: int) -> Any:
    """Return the part ``at`` of a vector, of so many lanes."""
    if isinstance(value, tirx.Broadcast):
        return tirx.Broadcast(value.value, count)
    return Shuffle([value], [IntImm("int32", lane) for lane in range(at * count, (at + 1) * count)])
