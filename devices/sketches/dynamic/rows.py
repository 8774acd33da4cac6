"""The rows of a kernel: places along a dynamic extent that are computed independently of each other.

A kernel over ``n`` images or ``n`` tokens computes row ``i`` of its results from row ``i`` of its arguments, in most
cases. Any number of rows is then computed by kernels of fixed numbers of rows, one after the other. A softmax along the
tokens, or a product of queries with all keys, has no such rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import BufferStore, For, IntImm, Mul, PrimFunc, Var, const
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_equal, structural_map, structural_walk

from devices.sketches.description.accesses import DATA_PARALLEL


@dataclass(frozen=True)
class Rows:
    """Places of the rows of a buffer."""

    axis: int
    """Its dimension along the dynamic extent."""
    each: int
    """Places along it that belong to one row: 197 where images of 197 patches were joined."""


def dynamic_extents(function: PrimFunc) -> tuple[Var, ...]:
    """Return the variables in the shapes of a kernel's parameters, in the order in which they occur; none where the
    shapes are fixed. A variable that is no extent itself, of which shapes have multiples or sums, is a parameter
    too; one that nothing reads is none."""
    read = [variable for each in tensors(function) for extent in each.ty.shape for variable in _variables(extent)]
    numbers = [each for each in function.params if not hasattr(each.ty, "shape")]
    read += [each for each in numbers if _reads(function.body, each)]
    return tuple(each for at, each in enumerate(read) if not any(each.same_as(before) for before in read[:at]))


def tensors(function: PrimFunc) -> list[Any]:
    """Return the parameters of a kernel that are tensors."""
    return [each for each in function.params if hasattr(each.ty, "shape")]


def is_dynamic(function: Any) -> bool:
    """Return true for a kernel over a dynamic extent, whether or not it has rows."""
    return isinstance(function, PrimFunc) and not all(
        hasattr(each.ty, "shape") and all(isinstance(extent, IntImm | int) for extent in each.ty.shape)
        for each in function.params
    )


def rows_of(function: PrimFunc, extent: Var) -> Mapping[int, Rows] | None:
    """Return the rows along ``extent`` of each tensor that has some, by its position among :func:`tensors`; None where
    rows depend on each other.

    Every block must run over its rows by a data-parallel axis of its own, which is the index of all buffers that have
    rows, and nothing else. Rows can be computed again: none is made of what was in a result before.
    """
    loops, realized = _loops_and_leaves(function)
    if not realized or not all(_keeps_rows(each, loops, extent) for each in realized) or _updates(realized):
        return None
    if not all(_is_regular(each, extent) for each in tensors(function)):
        return None
    found = {at: _rows(tensor, extent) for at, tensor in enumerate(tensors(function))}
    return {at: rows for at, rows in found.items() if rows is not None}


def specialized(function: PrimFunc, extents: Mapping[Var, int]) -> PrimFunc:
    """Return the kernel for fixed extents, whose parameters are the tensors of ``function``. ``extents``: all of
    :func:`dynamic_extents`."""
    # TVM replaces parameters: the extents are made some.
    generic = PrimFunc([*extents, *tensors(function)], function.body, function.ret_type, function.attrs)
    return generic.specialize({extent: const(value, str(extent.ty)) for extent, value in extents.items()})


def _rows(buffer: Any, extent: Var) -> Rows | None:
    """Return where the rows of a buffer are; None where it has none."""
    for axis, size in _sizes(buffer, extent):
        each = _multiple(size, extent)
        return None if each is None else Rows(axis, each)
    return None


def _is_regular(buffer: Any, extent: Var) -> bool:
    """Return true if one axis of a buffer at most is along ``extent``, and a multiple of it."""
    sizes = _sizes(buffer, extent)
    return not sizes or (len(sizes) == 1 and _multiple(sizes[0][1], extent) is not None)


def _sizes(buffer: Any, extent: Var) -> list[tuple[int, Any]]:
    """Return the axes of a buffer that depend on ``extent``, with their extents."""
    return [
        (axis, size)
        for axis, size in enumerate(buffer.ty.shape)
        if not isinstance(size, IntImm | int) and _reads(size, extent)
    ]


def _multiple(size: Any, extent: Var) -> int | None:
    """Return ``c`` of an extent ``c * n``."""
    if isinstance(size, Var):
        return 1 if size.same_as(extent) else None
    if isinstance(size, Mul):
        for factor, other in ((size.a, size.b), (size.b, size.a)):
            if isinstance(factor, IntImm) and isinstance(other, Var) and other.same_as(extent):
                return int(factor)
    return None


def _loops_and_leaves(function: PrimFunc) -> tuple[dict[Any, For], list[SBlockRealize]]:
    """Return the loops of a kernel by their variables, and its blocks without blocks inside."""
    loops: dict[Any, For] = {}
    realized: list[SBlockRealize] = []
    structural_walk(
        function.body, [(For, lambda loop: loops.update({loop.loop_var: loop})), (SBlockRealize, realized.append)]
    )
    return loops, [each for each in realized if isinstance(each.block.body, BufferStore) or not _has_block(each.block)]


def _has_block(block: SBlock) -> bool:
    found: list[Any] = []
    structural_walk(block.body, [(SBlockRealize, found.append)])
    return bool(found)


def _keeps_rows(realized: SBlockRealize, loops: Mapping[Any, For], extent: Var) -> bool:
    """Return true if each place along the block's axis over ``extent`` touches its own rows alone, and the block runs
    at all places."""
    block = realized.block
    if not isinstance(realized.predicate, IntImm) or not int(realized.predicate):
        return False
    axes = [each for each in block.iter_vars if _reads(each.dom.extent, extent)]
    if len(axes) > 1 or any(int(each.iter_type) != DATA_PARALLEL for each in axes):
        return False
    for each, value in zip(block.iter_vars, realized.iter_values, strict=True):
        loop = loops.get(value)
        is_whole = loop is not None and structural_equal(loop.extent, each.dom.extent, map_free_vars=False)
        if _reads(each.dom.min, extent) or (each in axes and not (is_whole and _is_zero(each.dom.min, loop))):
            return False
        if each not in axes and any(_reads(bound, extent) for bound in _bounds(value, loops)):
            return False
    stores = [each for each in (block.init, block.body) if each is not None]
    if not all(isinstance(each, BufferStore) for each in stores):
        return False
    touched = [each.buffer for each in stores]
    for each in stores:
        structural_walk(each.value, (TensorLoad, lambda load: touched.append(load.source)))
    if not all(_is_regular(each, extent) for each in touched):  # here: an error within TVM's walks breaks the process
        return False
    keeps = True

    def without_row(buffer: Any, indices: Any) -> list[Any]:
        nonlocal keeps
        rows, others = _rows(buffer, extent), list(indices)
        if rows is not None:
            row = others.pop(rows.axis)
            keeps &= len(axes) == 1 and row.same_as(axes[0].var) and _multiple(axes[0].dom.extent, extent) == rows.each
        return others

    def load(node: Any) -> Any:
        # What is left of the statement must not read the row.
        read.extend(without_row(node.source, node.indices))
        return const(0, str(node.ty))

    read: list[Any] = []
    for store in stores:
        values = [store.value, *without_row(store.buffer, store.indices)]
        read += [structural_map(each, (TensorLoad, load)) for each in values]
    left = [variable for each in read for variable in undefined_vars(each)]
    rowwise = [extent, *(each.var for each in axes)]
    # A buffer that is left is handed on as a pointer.
    return keeps and not any(
        hasattr(variable.ty, "shape") or any(variable.same_as(each) for each in rowwise) for variable in left
    )


def _updates(realized: Sequence[SBlockRealize]) -> bool:
    """Return true if blocks of one statement write a buffer that was read before it was written."""
    read: set[Any] = set()
    written: set[Any] = set()
    for block in (each.block for each in realized):
        if block.init is not None:
            written.add(block.init.buffer)
        structural_walk(block.body, (TensorLoad, lambda load: read.update({load.source} - written)))
        written.add(block.body.buffer)
    return bool(read & written)


def _is_zero(first: Any, loop: For | None) -> bool:
    return all(isinstance(each, IntImm) and not int(each) for each in (first, None if loop is None else loop.min))


def _bounds(value: Any, loops: Mapping[Any, For]) -> list[Any]:
    """Return the extents of the loops that a value is made of."""
    return [bound for each in undefined_vars(value) if each in loops for bound in (loops[each].min, loops[each].extent)]


def _variables(extent: Any) -> list[Any]:
    return [] if isinstance(extent, IntImm | int) else list(undefined_vars(extent))


def _reads(expression: Any, variable: Var) -> bool:
    return any(each.same_as(variable) for each in undefined_vars(expression))
