"""Strides of a block in the tensors that it reads and writes: the distance in elements of one step along each axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.ir import TensorLoad
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, IntImm, Var
from tvm_ffi import structural_map, structural_walk


def strides_of(block: SBlock) -> list[tuple[int, ...]] | None:
    """Return the stride of each axis in elements, for each access of a block to a tensor; None if a stride is not
    known, or differs between the first step of the axis and the last."""
    variables = [iteration.var for iteration in block.iter_vars]
    last = [int(iteration.dom.extent) - 1 for iteration in block.iter_vars]
    accesses: list[tuple[Any, Any]] = []
    structural_walk(
        block.body,
        [
            (TensorLoad, lambda node: accesses.append((node.source, node.indices))),
            (BufferStore, lambda node: accesses.append((node.buffer, node.indices))),
        ],
    )
    found: list[tuple[int, ...]] = []
    for buffer, indices in accesses:
        strides = []
        for axis, end in enumerate(last):
            second = [int(at == axis) for at in range(len(last))]
            before = [value - step for value, step in zip(last, second, strict=True)]
            places = [_place(buffer, indices, variables, at) for at in ([0] * len(last), second, before, last)]
            numbers = [place for place in places if place is not None]
            if end and (len(numbers) < len(places) or numbers[1] - numbers[0] != numbers[3] - numbers[2]):
                return None
            strides.append(numbers[1] - numbers[0] if end else 0)
        found.append(_filled(strides, last))
    return found


def alike(extents: Sequence[int], strides: Sequence[Sequence[int]]) -> int:
    """Return how many of the last axes can be merged into one axis for all operands."""
    count = min(1, len(extents))
    while count < len(extents):
        outer = len(extents) - count - 1
        if any(each[outer] != each[outer + 1] * extents[outer + 1] for each in strides):
            break
        count += 1
    return count


def _filled(strides: Sequence[int], last: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, with those of axes of extent 1 set as if the axes had more elements."""
    filled = list(strides)
    for axis in reversed(range(len(filled) - 1)):
        if not last[axis]:
            filled[axis] = filled[axis + 1] * (last[axis + 1] + 1)
    for axis in range(1, len(filled)):
        if not any(last[axis:]):
            filled[axis] = filled[axis - 1]
    return tuple(filled)


def _place(buffer: Any, indices: Any, variables: Sequence[Var], values: Sequence[int]) -> int | None:
    """Return the position of an access in a tensor; None if it depends on anything but the axes."""

    def value(variable: Var) -> Any:
        return next(
            (IntImm(variable.ty, n) for each, n in zip(variables, values, strict=True) if each.same_as(variable)),
            variable,
        )

    analyzer = Analyzer()
    place = 0
    for index, extent in zip(indices, buffer.shape, strict=True):
        at = analyzer.simplify(structural_map(index, (Var, value)))
        if not isinstance(at, IntImm):
            return None
        place = place * int(extent) + int(at)
    return place
