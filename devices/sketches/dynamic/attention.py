"""Attention over a dynamic number of rows or columns, in one kernel.

    parallel over samples, heads, parts of the keys
      keys                               in vectors of columns
    parallel over samples, heads, groups of rows
      queries                            of the group
      for each part of the keys
        scores                           in registers: rows of the group times columns of the part
        weights, lanes' largest          the scores with their mask; behind the last column -inf
      largest; weights                   exp(weights - largest), and their sums
      for each tile of the result
        sums                             in registers: rows of the group times places of the tile
        result                           sums / totals

It is the program of :mod:`devices.sketches.rules.attention` with the extents of its inner loops fixed. Rows behind the
last one are the last one again: its result is computed more than once, equally. So there is no smallest extent. The
weights of a group stay in the cache: of 16 rows and 4,096 keys they are 256 KiB.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Range, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import Bind, BufferStore, For, ForKind, IfThenElse, PrimFunc, SeqStmt, Stmt, Var
from tvm_ffi import structural_map

from devices.sketches.dynamic.attention_extents import AttentionExtents
from devices.sketches.dynamic.default_schedule import are_few
from devices.sketches.nests import FLOAT, replaced, variables_of
from devices.sketches.rules.attention import GRANULE, uses_attention
from devices.sketches.rules.attention.pattern import Attention
from devices.sketches.rules.attention.program import LANES, added, joined_by_pairs, lanes_of

_MOST_ROWS = 16
"""Of a group. Of more rows, TVM's compaction of buffers divides by zero."""


@dataclass(frozen=True)
class AttentionTiles:
    """Extents of the inner loops. The defaults fit the registers of every processor."""

    rows: int = 4
    """Of a group."""
    vectors: int = 1
    """Vectors of columns of a part of the keys."""
    terms: int = 1
    """Steps of a score's sum that are unrolled."""
    places: int = 1
    """Vectors of a tile of the result."""
    columns: int = 4
    """Steps of a result's sum that are unrolled."""

    @classmethod
    def of(cls, trace: str | None) -> AttentionTiles:
        """Return those that a trace of the rule "attention" (JSON text) decides; the defaults for another trace."""
        if trace is None or not uses_attention(trace):
            return cls()
        steps, decisions = json.loads(trace)
        sizes = [int(inputs[1]) for kind, inputs, keys, *_ in steps if kind == "Annotate" and keys[0] == GRANULE]
        tiles = [[int(extent) for extent in decision] for _, decision in decisions]
        granules, places, columns, vectors, terms = (inner for _, inner in tiles)
        return cls(min(granules, max(_MOST_ROWS // sizes[0], 1)) * sizes[0], vectors, terms, places, columns)


def dynamic_attention(kernel: PrimFunc, tiles: AttentionTiles) -> PrimFunc | None:
    """Return the kernel, scheduled, of an attention over a dynamic number of rows or columns; None for other
    kernels."""
    extents = AttentionExtents.of(kernel)
    if extents is None:
        return None
    found = extents.attention
    body = _Kernel(found, tiles, in_parallel=True).body()
    alone = _Kernel(found, AttentionTiles(), in_parallel=False).body()
    branches = IfThenElse(are_few(_places(found)), alone, body)
    root = SBlock([], [], [], "root", branches)
    scheduled = PrimFunc(kernel.params, SBlockRealize([], True, root), kernel.ret_type, kernel.attrs)
    return scheduled.with_attr("tirx.is_scheduled", True)


def _places(attention: Attention) -> list[Any]:
    """Return the number of columns, or of rows, where that is dynamic, and a dynamic number of samples."""
    along = attention.rows if isinstance(attention.columns, int) else attention.columns
    return [each for each in (*attention.batch, along) if not isinstance(each, int)]


class _Kernel:
    """The statements of one attention."""

    def __init__(self, attention: Attention, tiles: AttentionTiles, in_parallel: bool) -> None:
        self._attention = attention
        self._tiles = tiles
        self._outermost = ForKind.PARALLEL if in_parallel else ForKind.SERIAL
        self._lanes = lanes_of(attention.width)
        self._parts = _ceiling(attention.columns, tiles.vectors * LANES)
        self._groups = _ceiling(attention.rows, tiles.rows)
        self._heads = prod(attention.batch)
        self._keys = self._buffer("keys", self._heads * self._parts, tiles.vectors, attention.terms, LANES)
        self._queries = self._buffer("queries", tiles.rows, attention.terms)
        self._weights = self._buffer("weights", tiles.rows, self._parts * tiles.vectors * LANES)
        self._largest = self._buffer("largest", tiles.rows, LANES, scope="local")
        self._shares = self._buffer("shares", tiles.rows, scope="local")
        self._key = self._simplified(attention.key, attention.terms, attention.columns)
        self._query = self._simplified(attention.query, attention.rows, attention.terms)
        self._value = self._simplified(attention.value, attention.columns, attention.width)

    def body(self) -> Stmt:
        keys = self._loop("part", self._heads * self._parts, self._outermost, self._pack)
        groups = self._loop("group", self._heads * self._groups, self._outermost, self._group)
        return _block("attention", SeqStmt([keys, groups]), [self._keys])

    def _pack(self, part: Var) -> Stmt:
        """Put the keys of a part into vectors of columns."""
        head, first = self._variable("head"), self._variable("first")

        def store(vector: Var, term: Var, lane: Var) -> Stmt:
            column = tirx.min(first + vector * LANES + lane, self._attention.columns - 1)
            return BufferStore(self._keys, self._key([*self._head(head), term, column]), [part, vector, term, lane])

        stores = self._nest(
            store,
            vector=(self._tiles.vectors, ForKind.SERIAL),
            term=(self._attention.terms, ForKind.SERIAL),
            lane=(LANES, ForKind.VECTORIZED),
        )
        column = part % self._parts * (self._tiles.vectors * LANES)
        return SeqStmt([Bind(head, part // self._parts), Bind(first, column), stores])

    def _group(self, group: Var) -> Stmt:
        """Compute the rows of a group."""
        head, first = self._variable("head"), self._variable("first")
        rows, lanes = (self._tiles.rows, ForKind.UNROLLED), (LANES, ForKind.VECTORIZED)
        queries = self._nest(
            lambda row, term: BufferStore(
                self._queries, self._query([*self._head(head), self._row(first, row), term]), [row, term]
            ),
            row=(self._tiles.rows, ForKind.SERIAL),
            term=(self._attention.terms, ForKind.SERIAL),
        )
        start = self._nest(
            lambda row, lane: BufferStore(self._largest, tirx.min_value(FLOAT), [row, lane]), row=rows, lane=lanes
        )
        scores = self._loop("part", self._parts, ForKind.SERIAL, lambda part: self._scores(head, first, part))
        weights = self._loop("row", self._tiles.rows, ForKind.SERIAL, self._exponentials)
        tiles = self._attention.width // (self._lanes * self._tiles.places)
        results = self._loop("tile", tiles, ForKind.SERIAL, lambda tile: self._results(head, first, tile))
        buffers = [self._queries, self._weights, self._largest, self._shares]
        row = group % self._groups * self._tiles.rows
        binds = [Bind(head, group // self._groups), Bind(first, row)]
        return _block("group", SeqStmt([*binds, queries, start, scores, weights, results]), buffers)

    def _scores(self, head: Any, first: Any, part: Var) -> Stmt:
        """Compute the scores of a part, with their mask."""
        tiles, attention = self._tiles, self._attention
        sums = self._buffer("sums", tiles.rows, tiles.vectors, LANES, scope="local")
        tile = {
            "row": (tiles.rows, ForKind.UNROLLED),
            "vector": (tiles.vectors, ForKind.UNROLLED),
            "lane": (LANES, ForKind.VECTORIZED),
        }

        def add(term: Any) -> Stmt:
            def step(row: Var, vector: Var, lane: Var) -> Stmt:
                key = self._keys[head * self._parts + part, vector, term, lane]
                return BufferStore(sums, sums[row, vector, lane] + self._queries[row, term] * key, [row, vector, lane])

            return self._nest(step, **tile)

        def masked(is_whole: bool) -> Callable[..., Stmt]:
            def store(row: Var, vector: Var, lane: Var) -> Stmt:
                column = (part * tiles.vectors + vector) * LANES + lane
                place = column if is_whole else tirx.min(column, attention.columns - 1)
                value = self._score([*self._head(head), self._row(first, row), place], sums[row, vector, lane])
                if not is_whole:
                    value = tirx.Select(column < attention.columns, value, tirx.const(float("-inf"), FLOAT))
                return BufferStore(self._weights, value, [row, column])

            return store

        def largest(row: Var, vector: Var, lane: Var) -> Stmt:
            column = (part * tiles.vectors + vector) * LANES + lane
            value = tirx.max(self._largest[row, lane], self._weights[row, column])
            return BufferStore(self._largest, value, [row, lane])

        zero = self._nest(lambda *at: BufferStore(sums, tirx.const(0.0, FLOAT), at), **tile)
        steps = self._nest(
            lambda far, near: add(far * tiles.terms + near),
            far=(attention.terms // tiles.terms, ForKind.SERIAL),
            near=(tiles.terms, ForKind.UNROLLED),
        )
        is_whole = (part + 1) * (tiles.vectors * LANES) <= attention.columns
        stored = IfThenElse(is_whole, self._nest(masked(True), **tile), self._nest(masked(False), **tile))
        return _block("scores", SeqStmt([zero, steps, stored, self._nest(largest, **tile)]), [sums])

    def _exponentials(self, row: Var) -> Stmt:
        """Replace the scores of a row by their weights, and sum these up."""
        largest, totals = self._buffer("row_largest", 1), self._buffer("totals", LANES, scope="local")
        lane = (LANES, ForKind.VECTORIZED)
        found = joined_by_pairs(tirx.max, [self._largest[row, each] for each in range(LANES)])
        if self._attention.guarded:  # less a finite number, scores of -inf have weights of zero
            found = tirx.max(found, tirx.min_value(FLOAT))

        def weight(vector: Var) -> Stmt:
            def store(lane: Var) -> Stmt:
                at = [row, vector * LANES + lane]
                return BufferStore(self._weights, tirx.exp(self._weights[tuple(at)] - largest[0]), at)

            def add(lane: Var) -> Stmt:
                return BufferStore(totals, totals[lane] + self._weights[row, vector * LANES + lane], [lane])

            return SeqStmt([self._nest(store, lane=lane), self._nest(add, lane=lane)])

        zero = self._nest(lambda lane: BufferStore(totals, tirx.const(0.0, FLOAT), [lane]), lane=lane)
        steps = self._loop("vector", self._parts * self._tiles.vectors, ForKind.SERIAL, weight)
        total = joined_by_pairs(added, [totals[each] for each in range(LANES)])
        one = tirx.const(1.0, FLOAT)
        if self._attention.guarded:  # a score above -inf makes the total one at least
            total = tirx.Select(total == 0, one, total)
        share = BufferStore(self._shares, one / total, [row])
        return _block("weights", SeqStmt([BufferStore(largest, found, [0]), zero, steps, share]), [largest, totals])

    def _results(self, head: Any, first: Any, tile: Var) -> Stmt:
        """Compute a tile of the result."""
        tiles, attention, lanes = self._tiles, self._attention, self._lanes
        sums = self._buffer("sums", tiles.rows, tiles.places, lanes, scope="local")
        inner = {
            "row": (tiles.rows, ForKind.UNROLLED),
            "vector": (tiles.places, ForKind.UNROLLED),
            "lane": (lanes, ForKind.VECTORIZED),
        }

        def place(vector: Any, lane: Any) -> Any:
            return (tile * tiles.places + vector) * lanes + lane

        def add(column: Any) -> Stmt:
            def step(row: Var, vector: Var, lane: Var) -> Stmt:
                value = self._value([*self._head(head), column, place(vector, lane)])
                return BufferStore(
                    sums, sums[row, vector, lane] + self._weights[row, column] * value, [row, vector, lane]
                )

            return self._nest(step, **inner)

        def store(row: Var, vector: Var, lane: Var) -> Stmt:
            at = [*self._head(head), self._row(first, row), place(vector, lane)]
            return attention.store(at, sums[row, vector, lane] * self._shares[row])

        whole = attention.columns // tiles.columns
        zero = self._nest(lambda *at: BufferStore(sums, tirx.const(0.0, FLOAT), at), **inner)
        steps = self._nest(
            lambda far, near: add(far * tiles.columns + near),
            far=(whole, ForKind.SERIAL),
            near=(tiles.columns, ForKind.UNROLLED),
        )
        sum_up = [steps]
        if tiles.columns > 1:  # TVM does not compile a loop that it sees to be empty
            rest = attention.columns - whole * tiles.columns
            sum_up.append(self._loop("left", rest, ForKind.SERIAL, lambda left: add(whole * tiles.columns + left)))
        return _block("result", SeqStmt([zero, *sum_up, self._nest(store, **inner)]), [sums])

    def _score(self, at: Sequence[Any], product: Any) -> Any:
        """Return what the softmax takes at (.., row, column)."""
        attention = self._attention
        scores = self._simplified(lambda place: attention.score(place, product), attention.rows, attention.columns)
        return scores(at)

    def _simplified(self, element: Callable[[Sequence[Any]], Any], *extents: Any) -> Callable[[Sequence[Any]], Any]:
        """Return an element of the attention as a function of its place, simplified by the ``extents``."""
        variables = variables_of(len(self._attention.batch) + len(extents), self._attention.index)
        analyzer = Analyzer()
        for variable, extent in zip(variables, [*self._attention.batch, *extents], strict=True):
            analyzer.bind(variable, Range(tirx.const(0, self._attention.index), extent))

        def load(node: Any) -> Any:
            return node.source[tuple(map(analyzer.simplify, node.indices))]

        value = structural_map(element(variables), (TensorLoad, load))
        return lambda at: replaced(value, dict(zip(variables, at, strict=True)))

    def _row(self, first: Any, row: Any) -> Any:
        return tirx.min(first + row, self._attention.rows - 1)

    def _head(self, head: Any) -> list[Any]:
        """Return the indices of a sample and head, of its number among all."""
        if not self._attention.batch:
            return []
        indices: list[Any] = []
        for extent in reversed(self._attention.batch[1:]):
            indices.insert(0, head % extent)
            head = head // extent
        return [head, *indices]

    def _buffer(self, name: str, *shape: Any, scope: str = "global") -> Any:
        extents = [tirx.const(each, self._attention.index) if isinstance(each, int) else each for each in shape]
        return tirx.decl_buffer(extents, FLOAT, name, scope=scope)

    def _variable(self, name: str) -> Var:
        return Var(name, self._attention.index)

    def _nest(self, body: Callable[..., Stmt], **loops: tuple[Any, Any]) -> Stmt:
        """Return loops around a statement, each of an extent and a kind."""
        variables = [self._variable(name) for name in loops]
        statement = body(*variables)
        for variable, (extent, kind) in zip(reversed(variables), reversed(list(loops.values())), strict=True):
            statement = self._for(variable, extent, kind, statement)
        return statement

    def _loop(self, name: str, extent: Any, kind: Any, body: Callable[[Var], Stmt]) -> Stmt:
        return self._nest(body, **{name: (extent, kind)})

    def _for(self, variable: Var, extent: Any, kind: Any, body: Stmt) -> Stmt:
        index = self._attention.index
        size = tirx.const(extent, index) if isinstance(extent, int) else extent
        return For(variable, tirx.const(0, index), size, kind, body)


def _block(name: str, body: Stmt, buffers: Sequence[Any]) -> Stmt:
    """Return a statement with buffers of its own."""
    return SBlockRealize([], True, SBlock([], [], [], name, body, None, list(buffers)))


def _ceiling(extent: Any, size: int) -> Any:
    return (extent + (size - 1)) // size
