"""Steps of a row-wise kernel: the work of each step on a row, read from the unscheduled blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock
from tvm.tirx import Add, BufferStore, Div, Max, Min, Mul, PrimFunc, Sub
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_walk

from devices.sketches.description.undescribed import UndescribedError
from fleet_tune.base.sketch import RowStep

_ARITHMETIC = (Add, Sub, Mul, Max, Min)
_OPERATORS = "tirx."  # prefix of the names of functions that compute something
_NO_FUNCTIONS = frozenset({"tirx.if_then_else", "tirx.likely", "tirx.reinterpret"})


def row_step(block: SBlock, columns: int, rows: int, few: int, column: int | None) -> RowStep:
    """Return the work of ``block`` as a step. Raises UndescribedError for a block that stores more than one value.

    Args:
        block: the block.
        columns: number of its last axes along which it works in vectors: the reduced axes of a reduction; 0 if it works
            element by element.
        rows: number of rows.
        few: see :class:`RowStep`.
        column: see :class:`RowStep`.
    """
    variables = [iteration.var for iteration in block.iter_vars]
    along = variables[len(variables) - columns :]

    def moves(node: Any) -> bool:
        return not columns or _depends(node, along)

    stores: list[BufferStore] = []
    structural_walk(block.body, (BufferStore, stores.append))
    if len(stores) != 1:
        # The stored values are variables that are bound before (as for the index of a maximum); their work is not
        # counted.
        raise UndescribedError(f"block {block.name_hint} writes {len(stores)} results of a row together")
    values = [store.value for store in stores]
    written = sum(any(_depends(index, along) for index in store.indices) for store in stores) if columns else 1
    elements = prod(int(iteration.dom.extent) for iteration in block.iter_vars) // rows
    return RowStep(
        name=str(block.name_hint),
        elements=elements,
        few=few,
        column=column,
        operations=_different(values, _ARITHMETIC, lambda node: _is_float(node) and moves(node)),
        divisions=_different(values, (Div,), lambda node: _is_float(node) and moves(node)),
        calls=_different(values, (Call,), lambda node: _is_function(node) and moves(node)),
        reads=_different(values, (TensorLoad,), moves),
        writes=written,
    )


def row_bytes(func: PrimFunc, blocks: Sequence[SBlock], axes: int, rows: int) -> tuple[int, int]:
    """Return the bytes of each row in all buffers that are indexed by the row, and the part of these bytes that is in
    arguments or results of ``func``.

    ``rows``: number of rows; ``axes``: number of the first axes of every block, which run over the rows.
    """
    held: dict[str, tuple[int, bool]] = {}
    for block in blocks:
        of_rows = [iteration.var for iteration in block.iter_vars][:axes]

        def touch(buffer: Any, indices: Sequence[Any], of_rows: Sequence[Any] = of_rows) -> None:
            if rows == 1 or any(_depends(index, of_rows) for index in indices):
                size = prod(int(extent) for extent in buffer.shape) * tvm.DataType(str(buffer.dtype)).bits // 8
                argument = any(buffer.same_as(each) for each in func.params)
                held[str(buffer.name)] = -(-size // rows), argument

        structural_walk(
            block.body,
            [
                (TensorLoad, lambda node, touch=touch: touch(node.source, node.indices)),
                (BufferStore, lambda node, touch=touch: touch(node.buffer, node.indices)),
            ],
        )
    return sum(size for size, _ in held.values()), sum(size for size, argument in held.values() if argument)


def _different(values: Sequence[Any], kinds: Sequence[type], counts: Callable[[Any], bool]) -> int:
    """Return the number of different nodes of these kinds for which ``counts`` is true: equal nodes are computed
    once."""
    found: set[str] = set()

    def visit(node: Any) -> None:
        if counts(node):
            found.add(str(node))

    for value in values:
        structural_walk(value, [(kind, visit) for kind in kinds])
    return len(found)


def _depends(node: Any, variables: Sequence[Any]) -> bool:
    return any(used.same_as(variable) for used in undefined_vars(node) for variable in variables)


def _is_float(node: Any) -> bool:
    return str(node.ty).startswith(("float", "bfloat"))


def _is_function(node: Any) -> bool:
    name = str(getattr(node.op, "name", ""))
    return name.startswith(_OPERATORS) and name not in _NO_FUNCTIONS and _is_float(node)
