"""Sketch rule "overlapping-tiles": products whose extents have no divisor that fits a tile (CPU).

Schedules cut loops into equal parts. 197 rows, the tokens of a vision transformer, have none: a tile is one row, or all
of them. Here the axis ``a`` of ``n`` iterations is written as tiles of ``s``, of which the last one ends with the axis
and overlaps the one before:

    a = min(s * tile + inside, n - s + inside)

What two tiles compute twice is equal. There is no remainder and no padding: the rewritten program is scheduled by the
rule "register-blocked". An annotation of the root block, :data:`TILES`, tells for which rewritten program a trace is;
TVM alone cannot replay it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.target import Target
from tvm.tirx import BufferStore, For, PrimFunc, SeqStmt, Stmt
from tvm_ffi import structural_map, structural_walk

from devices.sketches.inlining import blocks_of, inline_element_wise
from devices.sketches.nests import axes_of, buffer_of, is_element_wise, nest, replaced, variables_of
from devices.sketches.register_blocked import Reduction, block_registers, describe_reduction

OVERLAPPING_TILES = "overlapping-tiles"
TILES = "fleet_tune.overlapping_tiles"
"""Annotation of the root block: JSON text of pairs of an axis, its position in the main block, and the size of its
tiles."""
_CPU = Target({"kind": "llvm"})
_ROWS = range(4, 33)
"""Rows of a tile that a schedule can make by itself."""
_NEW_ROWS = range(6, 13)
"""Rows of a tile that keep the units busy whatever the number of vectors beside them."""
_VECTOR = 16
_LANES = range(8, 65, 8)
"""Lanes of a tile that a schedule can make by itself."""

Tiling = tuple[tuple[int, int], ...]
"""Axes and the sizes of their tiles."""


def overlapping_tiles(module: tvm.IRModule, target: Target) -> list[Schedule]:
    """Return the design spaces of ``module`` (its function ``main``) with overlapping tiles; none where schedules can
    cut its axes well, and where the rule "register-blocked" does not apply.

    The schedules' traces hold the open decisions; a schedule's own decisions are arbitrary valid ones.
    """
    if target.kind.name != "llvm":
        return []
    product = _Product.of(module)
    if product is None:
        return []
    schedules = []
    for tiling in product.tilings():
        schedule = Schedule(product.rewritten(tiling), seed=1, debug_mask="none", error_render_level="none")
        if block_registers(schedule, target):
            # At the end: see the rule "winograd".
            schedule.annotate(schedule.get_sblock("root", "main"), TILES, json.dumps(tiling))
            schedules.append(schedule)
    return schedules


def tiling_of(instructions: Sequence[Sequence[Any]]) -> Tiling | None:
    """Return the tiles that a trace is for; None where its program is as it was. ``instructions``: kind, inputs,
    attributes and outputs of each, as the trace's JSON has them."""
    for kind, inputs, attributes, *_ in instructions:
        if kind == "Annotate" and attributes[0] == TILES:
            return tuple((int(axis), int(size)) for axis, size in json.loads(json.loads(inputs[1])))
    return None


def with_overlapping_tiles(module: tvm.IRModule, tiling: Tiling) -> tvm.IRModule | None:
    """Return the program with such tiles; None where it is another kind of program."""
    product = _Product.of(module)
    return None if product is None else product.rewritten(tiling)


class _Product:
    """A program of one reduction, what it reads (paddings), and what is computed of each of its results."""

    def __init__(self, main: PrimFunc, block: SBlock, shape: Reduction, epilogue: SBlock | None) -> None:
        self._main, self._block, self._shape, self._epilogue = main, block, shape, epilogue

    @classmethod
    def of(cls, module: tvm.IRModule) -> _Product | None:
        """Return the product that ``module`` computes; None where it computes something else."""
        found: list[SBlock] = []
        structural_walk(module["main"].body.block.body, (SBlock, found.append))
        names = [block.name_hint for block in found if describe_reduction(block) is not None]
        if len(names) != 1 or not cls._is_uneven(next(each for each in found if each.name_hint == names[0])):
            return None
        schedule = Schedule(module, debug_mask="none", error_render_level="none")
        inline_element_wise(schedule, _CPU, keep=names)
        blocks = blocks_of(schedule)
        block = next(each for each in blocks if each.name_hint == names[0])
        shape = describe_reduction(block)
        result = block.writes[0].source
        readers = [each for each in blocks if any(region.source.same_as(result) for region in each.reads)]
        if shape is None or len(readers) > 1 or not all(is_element_wise(each, result) for each in readers):
            return None
        if [each.var for each in block.iter_vars[: len(result.shape)]] != list(block.body.indices):
            return None
        return cls(schedule.mod["main"], block, shape, readers[0] if readers else None)

    @staticmethod
    def _is_uneven(block: SBlock) -> bool:
        shape = describe_reduction(block)
        return shape is not None and (
            any(_has_no_rows(shape.extents[axis]) for axis in shape.tiled) or _has_no_lanes(shape.extents[shape.vector])
        )

    def tilings(self) -> list[Tiling]:
        """Return the tiles that are worth a sketch."""
        shape = self._shape
        rows = [axis for axis in shape.tiled if _has_no_rows(shape.extents[axis])]
        vector = shape.vector if _has_no_lanes(shape.extents[shape.vector]) and not self._reads_weights() else None
        lanes: Tiling = () if vector is None else ((vector, _VECTOR),)
        if not rows:
            return [lanes] if lanes else []
        axis = max(rows, key=lambda each: shape.extents[each])
        return [((axis, size), *lanes) for size in _sizes(shape.extents[axis])]

    def _reads_weights(self) -> bool:
        """Return true if the axis of the vectors runs over a constant: its layout could not be changed any more."""
        constant = [self._main.params[int(at)] for at in (self._main.attrs or {}).get("layout_free_buffers", [])]
        vector = axes_of(self._block)[self._shape.vector]
        loads: list[Any] = []
        structural_walk(self._block.body.value, (TensorLoad, loads.append))
        return any(
            any(load.source.same_as(each) for each in constant) and any(vector.same_as(index) for index in load.indices)
            for load in loads
        )

    def rewritten(self, tiling: Tiling) -> tvm.IRModule:
        """Return the program with such tiles."""
        block, axes = self._block, axes_of(self._block)
        index = str(axes[0].ty.dtype)
        spatial = len(block.writes[0].source.shape)
        sizes = dict(tiling)
        count = spatial + len(tiling)
        variables = variables_of(count + len(axes) - spatial, index)
        # Tiles in the order of their axes, then what is inside of them: the vectors come last.
        inside = dict(zip(sorted(sizes), variables[spatial:count], strict=True))
        extents = [int(each.dom.extent) for each in block.iter_vars]
        known: dict[Any, Any] = {}
        for at, (axis, extent) in enumerate(zip(axes, extents, strict=True)):
            if at in sizes:
                size = sizes[at]
                known[axis] = tirx.min(variables[at] * size, extent - size) + inside[at]
            else:
                known[axis] = variables[at if at < spatial else at + len(tiling)]
        outer = [ceil(extents[at] / sizes[at]) if at in sizes else extents[at] for at in range(spatial)]
        order = list(range(count))
        if self._shape.vector not in sizes:
            # Its axis comes last though it has no tiles.
            order.remove(self._shape.vector)
            order.append(self._shape.vector)
        shape = [*outer, *(sizes[at] for at in sorted(sizes))]
        results = block.writes[0].source
        tiles = buffer_of(f"{results.name}_tiles", [shape[at] for at in order], index, str(results.dtype))
        place = [variables[at] for at in order]
        written = self._sums(block, tiles, place, known)
        body = nest(
            str(block.name_hint),
            [*(shape[at] for at in order), *extents[spatial:]],
            [*place, *variables[count:]],
            written,
            start=BufferStore(tiles, replaced(block.init.value, known), place),
            reduced=range(count, len(variables)),
        )
        after = self._after(tiles, place, known, [shape[at] for at in order])
        return tvm.IRModule({"main": self._with(body, after, tiles)})

    def _sums(self, block: SBlock, tiles: Any, place: Sequence[Any], known: dict[Any, Any]) -> Stmt:
        value = block.body.value
        return BufferStore(tiles, type(value)(tiles[tuple(place)], replaced(value.b, known)), place)

    def _after(self, tiles: Any, place: Sequence[Any], known: dict[Any, Any], shape: Sequence[int]) -> Stmt:
        """Return the nest that computes the program's result from the tiles."""
        results = self._block.writes[0].source
        at = [known[axis] for axis in axes_of(self._block)[: len(results.shape)]]
        block = self._epilogue
        if block is None:
            store = BufferStore(results, tiles[tuple(place)], at)
        else:

            def load(node: Any) -> Any:
                return tiles[tuple(place)] if node.source.same_as(results) else node

            value = structural_map(block.body.value, (TensorLoad, load))
            store = BufferStore(block.body.buffer, replaced(value, dict(zip(axes_of(block), at, strict=True))), at)
        # Variables of its own: a block does not share them with another one.
        fresh = variables_of(len(place), str(place[0].ty.dtype))
        names = dict(zip(place, fresh, strict=True))
        renamed = BufferStore(
            store.buffer, replaced(store.value, names), [replaced(each, names) for each in store.indices]
        )
        return nest("epilogue" if block is None else str(block.name_hint), shape, fresh, renamed)

    def _with(self, product: Stmt, after: Stmt, tiles: Any) -> PrimFunc:
        """Return the function with new nests in place of those of the product and its epilogue."""
        root = self._main.body.block
        replacements = {str(self._block.name_hint): [product]}
        if self._epilogue is None:
            replacements[str(self._block.name_hint)].append(after)
        else:
            replacements[str(self._epilogue.name_hint)] = [after]
        nests: list[Stmt] = []
        for each in root.body.seq if isinstance(root.body, SeqStmt) else [root.body]:
            nests += replacements.get(_block_in(each), [each])
        results = self._block.writes[0].source
        buffers = [each for each in root.alloc_buffers if not each.same_as(results)]
        body = SBlock([], [], [], root.name_hint, SeqStmt(nests), None, [*buffers, tiles], annotations=root.annotations)
        function = PrimFunc(list(self._main.params), SBlockRealize([], True, body), self._main.ret_type)
        return function.with_attr(dict(self._main.attrs))


def _block_in(statement: Stmt) -> str:
    """Return the name of the block in a nest."""
    while isinstance(statement, For):
        statement = statement.body
    return str(statement.block.name_hint) if isinstance(statement, SBlockRealize) else ""


def _has_no_rows(extent: int) -> bool:
    return extent > max(_ROWS) and not any(extent % rows == 0 for rows in _ROWS)


def _has_no_lanes(extent: int) -> bool:
    return extent > _VECTOR and not any(extent % lanes == 0 for lanes in _LANES)


def _sizes(extent: int) -> list[int]:
    """Return the two sizes of tiles that compute the fewest rows twice, those with more divisors of the number of tiles
    first."""

    def cost(size: int) -> tuple[int, int]:
        count = ceil(extent / size)
        return count * size, -sum(count % each == 0 for each in range(1, count + 1))

    return sorted(_NEW_ROWS, key=cost)[:2]
