"""A program that calls a library for its product or convolution.

TVM's parallel loop computes the result in parts of some rows and columns. Each part is one call, on one thread, which
writes a small buffer. The epilogue computes the program's result from this buffer while it is in the cache:

    parallel over columns (blocks of weights), images, rows
      tile = library(data, weights)
      rows, pixels, lanes                 vectorised over lanes
        result = epilogue(tile)

The last part of an axis ends with it and overlaps the part before, so that all calls have the same shape. Weights are
laid out in blocks of columns when the network is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Range, TensorLoad
from tvm.s_tir import MatchBufferRegion, SBlock, SBlockRealize
from tvm.tirx import BufferRegion, BufferStore, Evaluate, For, ForKind, IterVar, PrimFunc, SeqStmt, Stmt, Var
from tvm_ffi import structural_map

from devices.sketches.description.accesses import DATA_PARALLEL
from devices.sketches.nests import FLOAT, axes_of, buffer_of, replaced, variables_of
from devices.sketches.rules.library import COLUMNS, LIBRARY, ROWS
from devices.sketches.rules.library.operators import Operator, operator_of

_LANES = 16
BLOCKS = "_blocks"
"""Suffix of the name of weights that are laid out in blocks of columns."""


def with_library_calls(scheduled: tvm.IRModule, original: tvm.IRModule) -> tvm.IRModule:
    """Return the program with library calls if the annotations of ``scheduled`` ask for them; any other program stays
    unchanged.

    ``original``: the unscheduled program. Raises ValueError if a library cannot compute it.
    """
    annotations = scheduled["main"].body.block.annotations
    if LIBRARY not in annotations:
        return scheduled
    operator = operator_of(original)
    if operator is None:
        raise ValueError("a trace for a library, and the program is no product or convolution that it has")
    return library_program(operator, str(annotations[LIBRARY]), int(annotations[ROWS]), int(annotations[COLUMNS]))


def library_program(operator: Operator, library: str, rows: int, columns: int) -> tvm.IRModule:
    """Return the program that calls ``library`` for parts of the result. Each part has ``rows`` rows and ``columns``
    columns."""
    return tvm.IRModule({"main": _Parts(operator, library, rows, columns).function()})


class _Parts:
    """The parts of a result, and the program that computes them."""

    def __init__(self, operator: Operator, library: str, rows: int, columns: int) -> None:
        if not (1 <= rows <= operator.rows and 1 <= columns <= operator.outputs):
            raise ValueError(f"{rows} rows and {columns} columns of {operator.rows} and {operator.outputs}")
        self._operator, self._library, self._rows, self._columns = operator, library, rows, columns
        self._down, self._across = ceil(operator.rows / rows), ceil(operator.outputs / columns)
        self._index = operator.index
        self._weight = operator.weight
        if self._across > 1:
            shape = (self._across, *map(int, operator.weight.shape[:-1]), columns)
            self._weight = buffer_of(f"{operator.weight.name}{BLOCKS}", shape, self._index)

    def function(self) -> PrimFunc:
        """Return the function. If there are several blocks of columns, its weights are laid out in these blocks."""
        main, weight = self._operator.main, self._operator.weight
        params = [self._weight if each.same_as(weight) else each for each in main.params]
        root = SBlock([], [], [], "root", self._calls())
        return PrimFunc(params, SBlockRealize([], True, root), main.ret_type).with_attr(dict(main.attrs))

    def _calls(self) -> Stmt:
        """Return the parallel loop over the parts."""
        operator = self._operator
        (part,) = variables_of(1, self._index)
        across, rest = part // (operator.images * self._down), part % (operator.images * self._down)
        image, down = rest // self._down, rest % self._down
        first = _begin(down, self._rows, operator.rows)
        column = _begin(across, self._columns, operator.outputs)
        pixels = [] if operator.window is None else [operator.width]
        tile = buffer_of("tile", [self._rows, *pixels, self._columns], self._index)
        data = tirx.decl_buffer(
            operator.data.shape, FLOAT, "image", elem_offset=Var("begin", self._index), offset_factor=1
        )
        body = SeqStmt([self._call(data, tile, image, first, across), self._epilogue(tile, image, first, column)])
        others = (operator.weight, self._target)
        read = [each for each in operator.main.params if not any(each.same_as(other) for other in others)]
        block = SBlock(
            [IterVar(self._range(self._count), part, DATA_PARALLEL)],
            [_whole(each) for each in [*read, self._weight]],
            [_whole(self._target)],
            "library",
            body,
            None,
            [tile],
            # The library assumes contiguous memory: a part of another tensor would have other strides.
            [MatchBufferRegion(data, _whole(operator.data))],
        )
        loop = Var("part", self._index)
        return For(
            loop, self._number(0), self._number(self._count), ForKind.PARALLEL, SBlockRealize([loop], True, block)
        )

    @property
    def _count(self) -> int:
        return self._operator.images * self._down * self._across

    @property
    def _target(self) -> Any:
        """Buffer that the program writes."""
        epilogue = self._operator.epilogue
        return self._operator.result if epilogue is None else epilogue.body.buffer

    def _call(self, data: Any, tile: Any, image: Any, first: Any, across: Any) -> Stmt:
        operator, window = self._operator, self._operator.window
        block = 1
        for extent in self._weight.shape[-len(operator.weight.shape) :]:
            block *= int(extent)
        weight = self._weight.access_ptr("r", offset=across * block if self._across > 1 else self._number(0))
        into = tile.access_ptr("w")
        if window is None:
            read = data.access_ptr("r", offset=first * operator.inputs)
            numbers = [self._rows, self._columns, operator.inputs]
            return self._extern("product", read, weight, into, *numbers)
        pixels = 1
        for extent in operator.data.shape[1:]:
            pixels *= int(extent)
        read = data.access_ptr("r", offset=image * pixels)
        height, width = map(int, operator.data.shape[1:3])
        numbers = [self._rows, operator.width, self._columns, height, width, operator.inputs]
        numbers += [*window.size, *window.steps, *window.before]
        return self._extern("convolution", read, weight, into, first.astype("int32"), *numbers)

    def _extern(self, function: str, *arguments: Any) -> Stmt:
        given = [tirx.const(each, "int32") if isinstance(each, int) else each for each in arguments]
        return Evaluate(tirx.call_extern("int32", f"fleet_tune_{self._library}_{function}", *given))

    def _epilogue(self, tile: Any, image: Any, first: Any, column: Any) -> Stmt:
        """Return the loops that compute the program's result from a tile."""
        operator = self._operator
        row, pixel, vector, lane = (Var(name, self._index) for name in ("row", "pixel", "vector", "lane"))
        lanes = min(_LANES, self._columns)
        place = _begin(vector, lanes, self._columns) + lane
        inner = [row, place] if operator.window is None else [row, pixel, place]
        if operator.window is None:
            outer = _unflattened(first + row, [int(extent) for extent in operator.result.shape[:-1]])
        else:
            outer = [image, first + row, pixel]
        at = [*outer, column + place]
        loops = [(row, self._rows), (pixel, operator.width), (vector, ceil(self._columns / lanes))]
        store = BufferStore(self._target, self._value(tile, inner, at), at)
        body: Stmt = For(lane, self._number(0), self._number(lanes), ForKind.VECTORIZED, store)
        for variable, extent in reversed(loops):
            body = For(variable, self._number(0), self._number(extent), ForKind.SERIAL, body)
        return body

    def _value(self, tile: Any, inner: Sequence[Any], at: Sequence[Any]) -> Any:
        """Return an element of the program's result."""
        block = self._operator.epilogue
        if block is None:
            return tile[tuple(inner)]

        def load(node: Any) -> Any:
            return tile[tuple(inner)] if node.source.same_as(self._operator.result) else node

        value = structural_map(block.body.value, (TensorLoad, load))
        return replaced(value, dict(zip(axes_of(block), at, strict=True)))

    def _range(self, extent: int) -> Any:
        return Range(self._number(0), self._number(extent))

    def _number(self, value: int) -> Any:
        return tirx.const(value, self._index)


def element_of_block(weight: Any, blocks: Any, at: Sequence[Any]) -> Any:
    """Return the element ``at`` of weights in blocks of columns. ``weight``: buffer (..., n); ``blocks``: buffer
    (blocks, ..., columns)."""
    block, *inner, column = at
    return weight[(*inner, _begin(block, int(blocks.shape[-1]), int(weight.shape[-1])) + column)]


def _begin(part: Any, size: int, extent: int) -> Any:
    """Return the first index of a part of an axis. The last part ends with the axis."""
    return part * size if extent % size == 0 else tirx.min(part * size, extent - size)


def _whole(buffer: Any) -> Any:
    return BufferRegion(buffer, [Range.from_min_extent(0, extent) for extent in buffer.shape])


def _unflattened(row: Any, extents: Sequence[int]) -> list[Any]:
    """Return the indices of a flat row number in several axes."""
    places: list[Any] = []
    for extent in reversed(extents[1:]):
        places.insert(0, row % extent)
        row = row // extent
    return [row, *places]
