"""Kernels over a dynamic number of rows, composed of kernels over fixed numbers of rows.

    for each tile of 8 in n:          rows first .. first + 8 by the kernel of 8 rows
    for each tile of 4 in n % 8:      by the kernel of 4 rows
    for each row of n % 4:            by the kernel of one row

A tile may overlap the one before if that saves smaller tiles: two tiles of 4 compute 7 rows. Rows that two tiles
compute have the same values. The smallest tile overlaps whenever it does not divide the rows that are left.

A kernel over several extents (images times tokens) is tiled along one of them, in loops over the others.

If each tile is one parallel loop, threads synchronise only once, after the last tile
(:mod:`devices.sketches.dynamic.threads`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm.ir import Range, TensorLoad, TensorRegion
from tvm.s_tir import SBlock, SBlockRealize, renew_defs
from tvm.tirx import (
    Bind,
    BufferRegion,
    For,
    ForKind,
    IfThenElse,
    Or,
    PrimFunc,
    Select,
    SeqStmt,
    Stmt,
    Var,
    const,
    floordiv,
    floormod,
)
from tvm.tirx import min as least
from tvm_ffi import structural_equal, structural_map, structural_walk

from devices.sketches.dynamic.rows import Rows, tensors
from devices.sketches.dynamic.substitution import on_tensors
from devices.sketches.dynamic.threads import can_be_shared, is_serial, part_of_thread
from devices.sketches.plain_weights import LAYOUT_REWRITE


class LayoutMismatchError(ValueError):
    """A kernel expects a weight in another layout than the kernels of more rows, or cannot run on a part of its
    tensors.

    Args:
        size: number of rows of the kernel.
        reason: the reason, as part of a sentence.
    """

    def __init__(self, size: int, reason: str) -> None:
        super().__init__(f"the kernel of {size} rows: {reason}")
        self.size = size


def tiled_kernel(
    kernel: PrimFunc,
    extent: Var,
    rows: Mapping[Var, Mapping[int, Rows]],
    fixed: Mapping[int, PrimFunc],
    overlap: int = 0,
    threads: int = 1,
) -> PrimFunc:
    """Return a kernel that computes ``kernel`` by kernels over fixed numbers of rows.

    Args:
        kernel: the kernel over dynamic extents.
        extent: the extent that is tiled. It is never smaller than the smallest number of rows in ``fixed``.
        rows: the rows of the kernel's tensors along each extent (see :func:`devices.sketches.dynamic.rows.rows_of`).
        fixed: a scheduled kernel for each number of rows, with one row along each other extent. The largest tiles come
            first.
        overlap: the most rows that a tile may compute again to avoid smaller tiles.
        threads: number of threads that run the kernel.

    Raises :class:`LayoutMismatchError`.
    """
    dtype = str(extent.ty)
    outer = {each: Var(f"at_{each.name}", str(each.ty)) for each in rows if not each.same_as(extent)}
    conversions: list[_Conversion] = []
    # The smallest tile may always overlap, if it has several rows.
    overlaps = overlap > 0 or min(fixed) > 1
    thread = Var("thread", dtype)
    # If the schedules of all tiles use one thread, starting other threads takes longer than the work.
    is_shared = threads > 1 and not all(map(is_serial, fixed.values()))
    is_shared = is_shared and all(can_be_shared(each, overlaps) for each in fixed.values())

    def tiles_of(sizes: Sequence[int], left: Any) -> Stmt:
        """Return tiles of these sizes, in descending order, that compute the last ``left`` rows."""
        size, *smaller = sizes
        tile = _Tile(fixed[size], kernel, rows, size, conversions)
        # The fewest rows for which a tile of this size runs.
        fewest = max(smaller[0] + 1, size - overlap) if smaller else 1
        step, first = Var("step", dtype), Var("first", dtype)
        begin, count = extent - left + step * size, floordiv(left + (size - fewest), const(size, dtype))
        if fewest < size:
            begin = least(begin, extent - size)
        if fewest < size and smaller:
            count = Select(extent >= size, count, const(0, dtype))
        computed = tile.at({**outer, extent: first})
        if is_shared:
            computed = part_of_thread(computed, thread, threads, step)
        body = SeqStmt([Bind(first, begin), computed])
        whole = For(step, const(0, dtype), count, ForKind.SERIAL, body)
        if not smaller:
            return whole
        left = floormod(left, const(size, dtype))
        others = tiles_of(smaller, left)
        # A condition, instead of an expression for the rows left: that would contain the count of the larger sizes
        # twice at each size.
        if fewest < size:
            others = IfThenElse(Or(extent < size, left < fewest), others, None)
        return SeqStmt([whole, others])

    tiles = tiles_of(sorted(fixed, reverse=True), extent)
    for each, at in outer.items():
        tiles = For(at, const(0, str(each.ty)), each, ForKind.SERIAL, tiles)
    if is_shared:
        tiles = For(thread, const(0, dtype), const(threads, dtype), ForKind.PARALLEL, tiles)
        if not outer and is_serial(fixed[min(fixed)]):
            size = min(fixed)
            alone = _Tile(fixed[size], kernel, rows, size, conversions).at({extent: const(0, dtype)})
            tiles = IfThenElse(extent == size, alone, tiles)
    whole = [*(each.statement for each in conversions), tiles]
    root = SBlock(
        [], [], [], "root", SeqStmt(whole) if len(whole) > 1 else whole[0], None, [each.packed for each in conversions]
    )
    return PrimFunc(kernel.params, SBlockRealize([], True, root), kernel.ret_type).with_attr(dict(kernel.attrs))


class _Conversion:
    """A block that changes the layout of a weight or transforms it (Winograd's algorithm). TVM moves it out of the
    kernel."""

    def __init__(self, block: SBlock, statement: Stmt) -> None:
        self.weight, self.packed, self.statement = block.reads[0].source, block.writes[0].source, statement
        self._value, self._place = block.body.value, list(block.body.indices)

    @property
    def is_move(self) -> bool:
        """True if the packed weight is a permutation of the weight: it has the same values, each once."""
        # Overlapping tiles and a library's blocks of columns repeat some values: their indices are expressions.
        return isinstance(self._value, TensorLoad) and all(isinstance(each, Var) for each in self._value.indices)

    def place(self, indices: Sequence[Any]) -> list[Any]:
        """Return the indices in the packed weight for indices in the weight. Only for a permutation
        (:attr:`is_move`)."""
        known = dict(zip(self._value.indices, indices, strict=True))
        return [structural_map(each, (Var, lambda axis: known.get(axis, axis))) for each in self._place]

    def is_same(self, other: _Conversion) -> bool:
        shapes = list(self.packed.shape) == list(other.packed.shape)
        return shapes and bool(structural_equal(self.statement, other.statement, map_free_vars=True))


class _Tile:
    """A kernel over a fixed number of rows, as a part of another kernel."""

    def __init__(
        self,
        function: PrimFunc,
        kernel: PrimFunc,
        rows: Mapping[Var, Mapping[int, Rows]],
        size: int,
        conversions: list[_Conversion],
    ) -> None:
        self._function = renew_defs(function)  # the kernels of several sizes must not share variables
        self._theirs = dict(zip(self._function.params, tensors(kernel), strict=True))
        self._rows = {
            param: [(each, found[at]) for each, found in rows.items() if at in found]
            for at, param in enumerate(self._function.params)
        }
        self._size = size
        self._conversions = conversions

    def at(self, first: Mapping[Var, Any]) -> Stmt:
        """Return the kernel's body on the rows from ``first`` on, along each extent. Its conversions of weights are
        added to the common ones, unless equal ones are there."""

        def moved(tensor: Any, indices: Sequence[Any]) -> list[Any]:
            result = list(indices)
            for extent, found in self._rows[tensor]:
                index = result[found.axis]
                result[found.axis] = index + (first[extent] * found.each).astype(str(index.ty))
            return result

        try:
            root = on_tensors(self._function.body, self._theirs, moved).block
        except ValueError as error:
            raise LayoutMismatchError(self._size, str(error)) from error
        known: dict[Any, Any] = {}
        own: list[Any] = []
        kept: list[Stmt] = []
        for statement in root.body.seq if isinstance(root.body, SeqStmt) else [root.body]:
            block = _inner_block(statement)
            if block is None or LAYOUT_REWRITE not in block.annotations:
                kept.append(statement)
                continue
            conversion = _Conversion(block, statement)
            own.append(conversion.packed)
            there = next((each for each in self._conversions if each.weight.same_as(conversion.weight)), None)
            if there is None:
                self._conversions.append(conversion)
            elif there.is_same(conversion):
                known[conversion.packed] = there.packed
            else:
                raise LayoutMismatchError(self._size, f"it wants {conversion.weight.name} in another layout")
        inner = on_tensors(kept[0] if len(kept) == 1 else SeqStmt(kept), known)
        # A kernel without a schedule reads weights in their original layout. It now reads them in the layout of the
        # others.
        for conversion in self._conversions:
            if any(conversion.packed.same_as(each) for each in (*own, *known.values())):
                continue
            if conversion.is_move:
                inner = _reading_packed(inner, conversion)
            elif _reads(inner, conversion.weight):
                raise LayoutMismatchError(self._size, f"it wants {conversion.weight.name} as it comes")
        buffers = [each for each in root.alloc_buffers if each not in own]
        if not buffers:
            return inner
        return SBlockRealize([], True, SBlock([], [], [], "tile", inner, None, buffers, annotations=root.annotations))


def _reads(body: Stmt, buffer: Any) -> bool:
    found: list[Any] = []
    structural_walk(body, (TensorLoad, lambda load: found.append(load.source)))
    return any(each.same_as(buffer) for each in found)


def _reading_packed(body: Stmt, conversion: _Conversion) -> Stmt:
    """Return a statement that reads the packed weight instead of the original one."""
    weight, packed = conversion.weight, conversion.packed

    def load(node: Any) -> Any:
        return packed[tuple(conversion.place(node.indices))] if node.source.same_as(weight) else node

    def region(node: Any) -> Any:
        if not node.source.same_as(weight):
            return node
        index = str(packed.ty.shape[0].ty)
        return BufferRegion(packed, [Range.from_min_extent(const(0, index), extent) for extent in packed.ty.shape])

    return structural_map(body, [(TensorLoad, load), (TensorRegion, region)])


def _inner_block(statement: Stmt) -> SBlock | None:
    while isinstance(statement, For):
        statement = statement.body
    return statement.block if isinstance(statement, SBlockRealize) else None
