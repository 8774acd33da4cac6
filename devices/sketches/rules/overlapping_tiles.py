"""Sketch rule "overlapping-tiles": products with extents that no good tile size divides (CPU).

Schedules cut loops into equal parts. The number of tokens of a vision transformer, 197, is prime: a tile is one row, or
all of them. This rule writes an axis ``a`` of ``n`` iterations as tiles of ``s`` iterations. The last tile ends with
the axis and overlaps the one before:

    a = min(s * tile + inside, n - s + inside)

Rows that two tiles compute have equal results. There is no remainder and no padding. The rule "register-blocked"
schedules the rewritten program. An annotation of the root block, :data:`TILES`, identifies the rewritten program that a
trace applies to. TVM alone cannot replay such a trace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.target import Target
from tvm.tirx import BufferStore, For, PrimFunc, SeqStmt, Stmt
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_map, structural_walk

from devices.sketches.inlining import blocks_of, inline_element_wise
from devices.sketches.nests import axes_of, buffer_of, is_element_wise, nest, replaced, variables_of
from devices.sketches.rules.register_blocked import Reduction, block_registers, describe_reduction

OVERLAPPING_TILES = "overlapping-tiles"
TILES = "fleet_tune.overlapping_tiles"
"""Annotation of the root block: JSON text of pairs. Each has the position of an axis in the main block, and the size of
its tiles."""
_CPU = Target({"kind": "llvm"})
_ROWS = range(4, 33)
"""Rows of a tile for which an axis needs no overlapping tiles: one of them divides it."""
_NEW_ROWS = range(6, 13)
"""Rows of an overlapping tile: they keep the arithmetic units busy with any number of vectors in a row."""
_LANES = (64, 48, 32, 16)
"""Lanes of an overlapping tile: whole vectors of the widest registers."""
_PARTS = range(8, 65, 8)
"""Lanes of a tile without overlap: whole vectors, and possibly a part of one."""
_MOST_TWICE = 1 / 20
"""Largest share of an axis that may be computed twice in order to avoid parts of vectors."""

Tiling = tuple[tuple[int, int], ...]
"""Pairs of an axis and the size of its tiles."""


def overlapping_tiles(module: tvm.IRModule, target: Target) -> list[Schedule]:
    """Return the design spaces of ``module`` (its function ``main``) with overlapping tiles; none if good tile sizes
    divide its axes, or if the rule "register-blocked" does not apply.

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
            # Last: see the rule "winograd".
            schedule.annotate(schedule.get_sblock("root", "main"), TILES, json.dumps(tiling))
            schedules.append(schedule)
    return schedules


def tiling_of(instructions: Sequence[Sequence[Any]]) -> Tiling | None:
    """Return the tiling from a trace of this rule; None for a trace of another program. ``instructions``: kind, inputs,
    attributes and outputs of each, as in the trace's JSON."""
    for kind, inputs, attributes, *_ in instructions:
        if kind == "Annotate" and attributes[0] == TILES:
            return tuple((int(axis), int(size)) for axis, size in json.loads(json.loads(inputs[1])))
    return None


def with_overlapping_tiles(module: tvm.IRModule, tiling: Tiling) -> tvm.IRModule | None:
    """Return the program with such tiles; None if it is another kind of program, or if an axis is shorter than its
    tiles, so that a tile would begin before the axis."""
    product = _Product.of(module)
    return product.rewritten(tiling) if product is not None and product.has(tiling) else None


class _Product:
    """A program of one reduction, with its paddings and its epilogue."""

    def __init__(self, main: PrimFunc, block: SBlock, shape: Reduction, epilogue: SBlock | None) -> None:
        self._main, self._block, self._shape, self._epilogue = main, block, shape, epilogue

    @classmethod
    def of(cls, module: tvm.IRModule) -> _Product | None:
        """Return the product that ``module`` computes; None if it computes something else."""
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
        """Return the tilings that are worth a sketch."""
        shape = self._shape
        rows = [axis for axis in shape.tiled if _has_no_rows(shape.extents[axis])]
        extent = shape.extents[shape.vector]
        lanes: Tiling = ((shape.vector, _lanes(extent)),) if _has_no_lanes(extent) else ()
        weights = self._weights()
        if any(load is None for load in weights) or len({load.source for load in weights if load is not None}) > 1:
            lanes = ()
        if not rows:
            return [lanes] if lanes else []
        axis = max(rows, key=lambda each: shape.extents[each])
        return [((axis, size), *lanes) for size in _sizes(shape.extents[axis])]

    def has(self, tiling: Tiling) -> bool:
        """Return true if each of the axes has a whole tile."""
        return all(size <= self._shape.extents[axis] for axis, size in tiling)

    def _weights(self) -> list[Any]:
        """Return the loads of constants that depend on the vector axis. An entry is None if the axis occurs elsewhere
        than in the last index."""
        constant = [self._main.params[int(at)] for at in (self._main.attrs or {}).get("layout_free_buffers", [])]
        vector = axes_of(self._block)[self._shape.vector]
        loads: list[Any] = []
        structural_walk(self._block.body.value.b, (TensorLoad, loads.append))
        found = []
        for load in loads:
            if any(load.source.same_as(each) for each in constant):
                used = [any(vector.same_as(each) for each in undefined_vars(index)) for index in load.indices]
                if any(used):
                    found.append(load if used[:-1] == [False] * (len(used) - 1) else None)
        return found

    def rewritten(self, tiling: Tiling) -> tvm.IRModule:
        """Return the program with the tiles of ``tiling``."""
        block, axes, vector = self._block, axes_of(self._block), self._shape.vector
        index = str(axes[0].ty.dtype)
        spatial = len(block.writes[0].source.shape)
        sizes = dict(sorted(tiling))
        count = spatial + len(sizes)
        variables = variables_of(len(axes) + len(sizes), index)
        inside = dict(zip(sizes, variables[spatial:count], strict=True))
        extents = [int(each.dom.extent) for each in block.iter_vars]
        outer = [ceil(extents[at] / sizes[at]) if at in sizes else extents[at] for at in range(spatial)]
        known: dict[Any, Any] = dict(zip(axes, [*variables[:spatial], *variables[count:]], strict=True))
        for at, size in sizes.items():
            known[axes[at]] = tirx.min(variables[at] * size, extents[at] - size) + inside[at]
        # Tile numbers come first, because the register tile is made of the last axes.
        order = sorted(range(count), key=lambda at: at not in sizes)
        if vector not in sizes:
            order.remove(vector)
            order.append(vector)
        shape = [[*outer, *sizes.values()][at] for at in order]
        results = block.writes[0].source
        tiles = buffer_of(f"{results.name}_tiles", shape, index, str(results.dtype))
        place = [variables[at] for at in order]
        term, held = block.body.value.b, {}
        if vector in sizes:
            held = self._weights_in_tiles(outer[vector], sizes[vector], index)
            term = structural_map(term, (TensorLoad, _in_tiles(held, variables[vector], inside[vector])))
        body = nest(
            str(block.name_hint),
            [*shape, *extents[spatial:]],
            [*place, *variables[count:]],
            BufferStore(tiles, type(block.body.value)(tiles[tuple(place)], replaced(term, known)), place),
            start=BufferStore(tiles, replaced(block.init.value, known), place),
            reduced=range(count, len(variables)),
        )
        after = self._after(tiles, place, known, shape)
        return tvm.IRModule({"main": self._with(body, after, tiles, held)})

    def _weights_in_tiles(self, count: int, lanes: int, index: str) -> dict[Any, Any]:
        """Return the buffers of weights in tiles along the vector axis, by the buffers of the original weights."""
        sources = {load.source: None for load in self._weights()}
        return {
            source: buffer_of(
                f"{source.name}_tiles", [*map(int, source.shape[:-1]), count, lanes], index, str(source.dtype)
            )
            for source in sources
        }

    def _after(self, tiles: Any, place: Sequence[Any], known: dict[Any, Any], shape: Sequence[int]) -> Stmt:
        """Return the loop nest that computes the program's result from the tiles."""
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
        # New variables, because two blocks must not share any.
        fresh = variables_of(len(place), str(place[0].ty.dtype))
        names = dict(zip(place, fresh, strict=True))
        renamed = BufferStore(
            store.buffer, replaced(store.value, names), [replaced(each, names) for each in store.indices]
        )
        return nest("epilogue" if block is None else str(block.name_hint), shape, fresh, renamed)

    def _with(self, product: Stmt, after: Stmt, tiles: Any, held: Mapping[Any, Any]) -> PrimFunc:
        """Return the function in which the nests of the product and its epilogue are replaced by the new ones, and the
        weights by weights in tiles (``held``)."""
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
        params = list(self._main.params)
        for at, param in enumerate(params):
            params[at] = next((new for old, new in held.items() if old.same_as(param)), param)
        function = PrimFunc(params, SBlockRealize([], True, body), self._main.ret_type)
        attributes = dict(self._main.attrs)
        if held:
            # Other constants are read across tiles, so TVM cannot change their layout.
            changed = [at for at, param in enumerate(params) if any(param.same_as(new) for new in held.values())]
            attributes["layout_free_buffers"] = changed
        return function.with_attr(attributes)


def _in_tiles(held: Mapping[Any, Any], tile: Any, lane: Any) -> Callable[[Any], Any]:
    """Return a function that replaces loads of weights by loads of the weights in tiles."""

    def load(node: Any) -> Any:
        changed = next((new for old, new in held.items() if old.same_as(node.source)), None)
        return node if changed is None else changed[(*list(node.indices)[:-1], tile, lane)]

    return load


def _block_in(statement: Stmt) -> str:
    """Return the name of the block in a nest."""
    while isinstance(statement, For):
        statement = statement.body
    return str(statement.block.name_hint) if isinstance(statement, SBlockRealize) else ""


def _has_no_rows(extent: int) -> bool:
    return extent > max(_ROWS) and not any(extent % rows == 0 for rows in _ROWS)


def _has_no_lanes(extent: int) -> bool:
    if extent <= min(_LANES) or extent % min(_LANES) == 0:
        return False
    size = _lanes(extent)
    return not any(extent % lanes == 0 for lanes in _PARTS) or ceil(extent / size) * size <= (1 + _MOST_TWICE) * extent


def _lanes(extent: int) -> int:
    """Return the number of lanes with which the fewest elements are computed twice. If several are equal, it is the
    largest."""
    return min((each for each in _LANES if each < extent), key=lambda each: ceil(extent / each) * each)


def element_of_tile(weight: Any, tiles: Any, at: Sequence[Any]) -> Any:
    """Return the element ``at`` of weights in overlapping tiles. ``weight``: buffer (..., n); ``tiles``: buffer (...,
    tiles, lanes)."""
    *outer, tile, lane = at
    extent, lanes = int(weight.shape[-1]), int(tiles.shape[-1])
    return weight[(*outer, tirx.min(tile * lanes, extent - lanes) + lane)]


def _sizes(extent: int) -> list[int]:
    """Return the two tile sizes with which the fewest rows are computed twice. Among equals, sizes come first whose
    number of tiles has more divisors."""

    def cost(size: int) -> tuple[int, int]:
        count = ceil(extent / size)
        return count * size, -sum(count % each == 0 for each in range(1, count + 1))

    return sorted(_NEW_ROWS, key=cost)[:2]
