"""The rows of a kernel: places along a dynamic extent that are computed independently of each other.

In most cases, a kernel over ``n`` images or ``n`` tokens computes row ``i`` of its results from row ``i`` of its
arguments. Kernels over fixed numbers of rows, one after the other, can then compute any number of rows. A softmax along
the tokens, or a product of queries with all keys, has no such rows.
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
    """Position of the rows in a buffer."""

    axis: int
    """Dimension of the buffer along the dynamic extent."""
    each: int
    """Number of elements along this dimension that belong to one row: 197 if images of 197 patches were joined."""


def dynamic_extents(function: PrimFunc) -> tuple[Var, ...]:
    """Return the variables of a kernel's dynamic extents in order of occurrence: first those in the shapes of its
    tensors, then its scalar parameters, if the body reads them. There are none if the shapes are fixed. A variable is
    also a scalar parameter if it is no extent itself, but shapes contain multiples or sums of it."""
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
    """Return the rows of the tensors along ``extent``, by the position of each tensor among :func:`tensors`; None if
    rows depend on each other. Tensors without such rows are left out.

    Every block must run over its rows by one data-parallel axis, which is used only as the row index of buffers. It
    must be possible to compute rows again: no row may depend on the earlier contents of a result.
    """
    loops, realized = _loops_and_leaves(function)
    if not realized or not all(_keeps_rows(each, loops, extent) for each in realized) or _updates(realized):
        return None
    if not all(_is_regular(each, extent) for each in tensors(function)):
        return None
    found = {at: _rows(tensor, extent) for at, tensor in enumerate(tensors(function))}
    return {at: rows for at, rows in found.items() if rows is not None}


def specialized(function: PrimFunc, extents: Mapping[Var, int]) -> PrimFunc:
    """Return the kernel for fixed extents. Its parameters are the tensors of ``function``. ``extents``: values of all
    :func:`dynamic_extents`."""
    # TVM can specialise parameters only, so the extents are made parameters.
    generic = PrimFunc([*extents, *tensors(function)], function.body, function.ret_type, function.attrs)
    return generic.specialize({extent: const(value, str(extent.ty)) for extent, value in extents.items()})


def _rows(buffer: Any, extent: Var) -> Rows | None:
    """Return the position of the rows in a buffer; None if it has none."""
    for axis, size in _sizes(buffer, extent):
        each = _multiple(size, extent)
        return None if each is None else Rows(axis, each)
    return None


def _is_regular(buffer: Any, extent: Var) -> bool:
    """Return true if at most one axis of a buffer depends on ``extent``, and its size is a constant times
    ``extent``."""
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
    """Return ``c`` if a size is ``c * extent``; None for another size."""
    if isinstance(size, Var):
        return 1 if size.same_as(extent) else None
    if isinstance(size, Mul):
        for factor, other in ((size.a, size.b), (size.b, size.a)):
            if isinstance(factor, IntImm) and isinstance(other, Var) and other.same_as(extent):
                return int(factor)
    return None


def _loops_and_leaves(function: PrimFunc) -> tuple[dict[Any, For], list[SBlockRealize]]:
    """Return the loops of a kernel by their variables, and its leaf blocks."""
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
    """Return true if the block runs for every row along ``extent``, and accesses only the elements of that row."""
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
    if not all(_is_regular(each, extent) for each in touched):  # an error within TVM's walks would crash the process
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
        # The other indices are checked below: they must not depend on the row.
        read.extend(without_row(node.source, node.indices))
        return const(0, str(node.ty))

    read: list[Any] = []
    for store in stores:
        values = [store.value, *without_row(store.buffer, store.indices)]
        read += [structural_map(each, (TensorLoad, load)) for each in values]
    left = [variable for each in read for variable in undefined_vars(each)]
    rowwise = [extent, *(each.var for each in axes)]
    # A buffer that is still there is passed on as a pointer.
    return keeps and not any(
        hasattr(variable.ty, "shape") or any(variable.same_as(each) for each in rowwise) for variable in left
    )


def _updates(realized: Sequence[SBlockRealize]) -> bool:
    """Return true if blocks read a buffer before they write it."""
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
    """Return the bounds (first values and extents) of the loops whose variables a value contains."""
    return [bound for each in undefined_vars(value) if each in loops for bound in (loops[each].min, loops[each].extent)]


def _variables(extent: Any) -> list[Any]:
    return [] if isinstance(extent, IntImm | int) else list(undefined_vars(extent))


def _reads(expression: Any, variable: Var) -> bool:
    return any(each.same_as(variable) for each in undefined_vars(expression))
