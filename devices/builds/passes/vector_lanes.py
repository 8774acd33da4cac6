"""Splitting of TensorIR vectors into parts that are as wide as an instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import For, ForKind, IntImm, Shuffle, Var
from tvm_ffi import structural_map


def dtype_of(value: Any) -> str:
    """Return the type of an expression, with its lanes."""
    return str(tvm.DataType(str(value.ty)))


def lanes_of(value: Any) -> int:
    """Return the number of lanes of an expression."""
    return int(tvm.DataType(str(value.ty)).lanes)


def is_vector_loop(loop: For) -> bool:
    """Return true for a vectorised loop of constant extent."""
    return int(loop.kind) == int(ForKind.VECTORIZED) and isinstance(loop.extent, IntImm)


def vector_in_parts(loop: For, lanes: int) -> For:
    """Return a vectorised loop as a serial loop of vectors. Each has ``lanes`` lanes, a divisor of the extent. With one
    lane, return a plain serial loop."""
    index, dtype, extent = loop.loop_var, loop.loop_var.ty.dtype, int(loop.extent)
    if lanes == 1:
        return For(index, loop.min, loop.extent, ForKind.SERIAL, loop.body, None, dict(loop.annotations))
    part, lane = Var(f"{index.name}_part", dtype), Var(index.name, dtype)
    element = part * IntImm(dtype, lanes) + lane
    body = structural_map(loop.body, (Var, lambda each: element if each.same_as(index) else each))
    inner = For(lane, IntImm(dtype, 0), IntImm(dtype, lanes), ForKind.VECTORIZED, body, None, dict(loop.annotations))
    return For(part, IntImm(dtype, 0), IntImm(dtype, extent // lanes), ForKind.SERIAL, inner)


def by_parts(instruction: Callable[..., Any], operands: Sequence[Any], most: int) -> Any:
    """Return ``instruction(*operands)``, applied to parts of at most ``most`` lanes, each a power of two."""
    lanes = lanes_of(operands[0])
    parts = list(_parts(lanes, most))
    if len(parts) == 1:
        return instruction(*operands)
    results = [instruction(*(_part(each, at, count) for each in operands)) for at, count in parts]
    return Shuffle(results, [IntImm("int32", at) for at in range(lanes)])


def _parts(lanes: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first lane and the number of lanes of each part. All numbers are powers of two, at most ``most``."""
    at = 0
    while at < lanes:
        count = min(most, 1 << (lanes - at).bit_length() - 1)
        yield at, count
        at += count


def _part(value: Any, at: int, count: int) -> Any:
    """Return ``count`` lanes of a vector, from the lane ``at`` on."""
    if isinstance(value, tirx.Broadcast):
        return value.value if count == 1 else tirx.Broadcast(value.value, count)
    return Shuffle([value], [IntImm("int32", lane) for lane in range(at, at + count)])
