"""Attention of many rows over dynamic extents, computed in groups of rows.

    parallel over samples, heads, parts of the keys
      keys                               in vectors of columns
    parallel over samples, heads, groups of rows
      queries                            of the group
      for each part of the keys
        scores                           in registers: rows of the group times columns of the part
        weights, lanes' largest          the scores with their mask; -inf after the last column
      largest; weights                   exp(weights - largest), and the sums of these
      for each tile of the result
        sums                             in registers: rows of the group times places of the tile
        result                           sums / totals

This is the program of :mod:`devices.sketches.rules.attention` with fixed extents of the inner loops. Rows after the
last one repeat the last row, whose result is then computed more than once, with equal values. So the number of rows has
no lower limit. The weights of a group stay in the cache: 16 rows and 4,096 keys take 256 KiB.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.tirx import Bind, BufferStore, ForKind, IfThenElse, SeqStmt, Stmt, Var

from devices.sketches.dynamic.attention_parts import Elements, Loops, Softmax, block, ceiling
from devices.sketches.nests import FLOAT
from devices.sketches.rules.attention import GRANULE, uses_attention
from devices.sketches.rules.attention.pattern import Attention
from devices.sketches.rules.attention.program import LANES, lanes_of

_MOST_ROWS = 16
"""Most rows of a group. With more rows, TVM's compaction of buffers divides by zero."""


@dataclass(frozen=True)
class AttentionTiles:
    """Extents of the inner loops. The defaults fit the registers of every processor."""

    rows: int = 4
    """Rows of a group."""
    vectors: int = 1
    """Vectors of columns in a part of the keys."""
    terms: int = 1
    """Unrolled steps of the sum of a score."""
    places: int = 1
    """Vectors in a tile of the result."""
    columns: int = 4
    """Unrolled steps of the sum of a result."""

    @classmethod
    def of(cls, trace: str | None) -> AttentionTiles:
        """Return the tiles that a trace of the rule "attention" (JSON text) decides; the defaults for any other
        trace."""
        if trace is None or not uses_attention(trace):
            return cls()
        steps, decisions = json.loads(trace)
        sizes = [int(inputs[1]) for kind, inputs, keys, *_ in steps if kind == "Annotate" and keys[0] == GRANULE]
        tiles = [[int(extent) for extent in decision] for _, decision in decisions]
        granules, places, columns, vectors, terms = (inner for _, inner in tiles)
        return cls(min(granules, max(_MOST_ROWS // sizes[0], 1)) * sizes[0], vectors, terms, places, columns)


class ManyRows:
    """The program of one attention of many rows."""

    def __init__(self, attention: Attention, tiles: AttentionTiles, in_parallel: bool) -> None:
        self._attention = attention
        self._tiles = tiles
        self._outermost = ForKind.PARALLEL if in_parallel else ForKind.SERIAL
        self._lanes = lanes_of(attention.width)
        self._parts = ceiling(attention.columns, tiles.vectors * LANES)
        self._groups = ceiling(attention.rows, tiles.rows)
        self._elements, self._loops = Elements(attention), Loops(attention.index)
        self._heads = self._elements.heads
        self._keys = self._loops.buffer("keys", self._heads * self._parts, tiles.vectors, attention.terms, LANES)
        self._queries = self._loops.buffer("queries", tiles.rows, attention.terms)
        self._softmax = Softmax(self._loops, tiles.rows, self._parts * tiles.vectors, attention.guarded)

    def body(self) -> Stmt:
        keys = self._loops.loop("part", self._heads * self._parts, self._outermost, self._pack)
        groups = self._loops.loop("group", self._heads * self._groups, self._outermost, self._group)
        return block("attention", SeqStmt([keys, groups]), [self._keys])

    def _pack(self, part: Var) -> Stmt:
        """Put the keys of a part into vectors of columns."""
        head, first = self._loops.variable("head"), self._loops.variable("first")

        def store(vector: Var, term: Var, lane: Var) -> Stmt:
            column = tirx.min(first + vector * LANES + lane, self._attention.columns - 1)
            return BufferStore(self._keys, self._elements.key(head, term, column), [part, vector, term, lane])

        stores = self._loops.nest(
            store,
            vector=(self._tiles.vectors, ForKind.SERIAL),
            term=(self._attention.terms, ForKind.SERIAL),
            lane=(LANES, ForKind.VECTORIZED),
        )
        column = part % self._parts * (self._tiles.vectors * LANES)
        return SeqStmt([Bind(head, part // self._parts), Bind(first, column), stores])

    def _group(self, group: Var) -> Stmt:
        """Compute the rows of a group."""
        head, first = self._loops.variable("head"), self._loops.variable("first")
        rows, lanes = (self._tiles.rows, ForKind.UNROLLED), (LANES, ForKind.VECTORIZED)
        queries = self._loops.nest(
            lambda row, term: BufferStore(
                self._queries, self._elements.query(head, self._row(first, row), term), [row, term]
            ),
            row=(self._tiles.rows, ForKind.SERIAL),
            term=(self._attention.terms, ForKind.SERIAL),
        )
        start = self._loops.nest(self._softmax.begin, row=rows, lane=lanes)
        scores = self._loops.loop("part", self._parts, ForKind.SERIAL, lambda part: self._scores(head, first, part))
        weights = self._loops.loop("row", self._tiles.rows, ForKind.SERIAL, self._softmax.exponentials)
        tiles = self._attention.width // (self._lanes * self._tiles.places)
        results = self._loops.loop("tile", tiles, ForKind.SERIAL, lambda tile: self._results(head, first, tile))
        row = group % self._groups * self._tiles.rows
        binds = [Bind(head, group // self._groups), Bind(first, row)]
        steps = SeqStmt([*binds, queries, start, scores, weights, results])
        return block("group", steps, [self._queries, *self._softmax.buffers])

    def _scores(self, head: Any, first: Any, part: Var) -> Stmt:
        """Compute the scores of a part, with their mask."""
        tiles, attention = self._tiles, self._attention
        sums = self._loops.buffer("sums", tiles.rows, tiles.vectors, LANES, scope="local")
        tile = {
            "row": (tiles.rows, ForKind.UNROLLED),
            "vector": (tiles.vectors, ForKind.UNROLLED),
            "lane": (LANES, ForKind.VECTORIZED),
        }

        def add(term: Any) -> Stmt:
            def step(row: Var, vector: Var, lane: Var) -> Stmt:
                key = self._keys[head * self._parts + part, vector, term, lane]
                return BufferStore(sums, sums[row, vector, lane] + self._queries[row, term] * key, [row, vector, lane])

            return self._loops.nest(step, **tile)

        def masked(is_whole: bool) -> Callable[..., Stmt]:
            def store(row: Var, vector: Var, lane: Var) -> Stmt:
                column = (part * tiles.vectors + vector) * LANES + lane
                place = column if is_whole else tirx.min(column, attention.columns - 1)
                value = self._elements.score(head, self._row(first, row), place, sums[row, vector, lane])
                if not is_whole:
                    value = tirx.Select(column < attention.columns, value, tirx.const(float("-inf"), FLOAT))
                return BufferStore(self._softmax.weights, value, [row, column])

            return store

        def largest(row: Var, vector: Var, lane: Var) -> Stmt:
            return self._softmax.take(row, lane, (part * tiles.vectors + vector) * LANES + lane)

        zero = self._loops.nest(lambda *at: BufferStore(sums, tirx.const(0.0, FLOAT), at), **tile)
        steps = self._loops.nest(
            lambda far, near: add(far * tiles.terms + near),
            far=(attention.terms // tiles.terms, ForKind.SERIAL),
            near=(tiles.terms, ForKind.UNROLLED),
        )
        is_whole = (part + 1) * (tiles.vectors * LANES) <= attention.columns
        branches = [self._loops.nest(masked(each), **tile) for each in (True, False)]
        stored = IfThenElse(is_whole, *branches)
        return block("scores", SeqStmt([zero, steps, stored, self._loops.nest(largest, **tile)]), [sums])

    def _results(self, head: Any, first: Any, tile: Var) -> Stmt:
        """Compute a tile of the result."""
        tiles, attention, lanes = self._tiles, self._attention, self._lanes
        sums = self._loops.buffer("sums", tiles.rows, tiles.places, lanes, scope="local")
        inner = {
            "row": (tiles.rows, ForKind.UNROLLED),
            "vector": (tiles.places, ForKind.UNROLLED),
            "lane": (lanes, ForKind.VECTORIZED),
        }

        def place(vector: Any, lane: Any) -> Any:
            return (tile * tiles.places + vector) * lanes + lane

        def add(column: Any) -> Stmt:
            def step(row: Var, vector: Var, lane: Var) -> Stmt:
                value = self._elements.value(head, column, place(vector, lane))
                product = self._softmax.weights[row, column] * value
                return BufferStore(sums, sums[row, vector, lane] + product, [row, vector, lane])

            return self._loops.nest(step, **inner)

        def store(row: Var, vector: Var, lane: Var) -> Stmt:
            value = sums[row, vector, lane] * self._softmax.shares[row]
            return self._elements.store(head, self._row(first, row), place(vector, lane), value)

        whole = attention.columns // tiles.columns
        zero = self._loops.nest(lambda *at: BufferStore(sums, tirx.const(0.0, FLOAT), at), **inner)
        steps = self._loops.nest(
            lambda far, near: add(far * tiles.columns + near),
            far=(whole, ForKind.SERIAL),
            near=(tiles.columns, ForKind.UNROLLED),
        )
        rest = self._loops.loop(
            "left",
            attention.columns - whole * tiles.columns,
            ForKind.SERIAL,
            lambda left: add(whole * tiles.columns + left),
        )
        return block("result", SeqStmt([zero, steps, rest, self._loops.nest(store, **inner)]), [sums])

    def _row(self, first: Any, row: Any) -> Any:
        return tirx.min(first + row, self._attention.rows - 1)
