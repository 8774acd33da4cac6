"""Common parts of programs of an attention over dynamic extents: elements, loops, and the softmax of a row of
scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Range, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, ForKind, SeqStmt, Stmt, Var
from tvm_ffi import structural_map

from devices.sketches.nests import FLOAT, replaced, variables_of
from devices.sketches.rules.attention.pattern import Attention
from devices.sketches.rules.attention.program import LANES, added, joined_by_pairs

Element = Callable[[Sequence[Any]], Any]
"""A function that takes a place, such as (.., row, column), and returns the element there."""


class Elements:
    """The elements of an attention. A head is given by its number among the heads of all samples."""

    def __init__(self, attention: Attention) -> None:
        rows, columns, terms, width = attention.rows, attention.columns, attention.terms, attention.width
        self._attention = attention
        self.heads = prod(attention.batch)
        self._query = self._simplified(attention.query, rows, terms)
        self._key = self._simplified(attention.key, terms, columns)
        self._value = self._simplified(attention.value, columns, width)

    def query(self, head: Any, row: Any, term: Any) -> Any:
        return self._query([*self._indices(head), row, term])

    def key(self, head: Any, term: Any, column: Any) -> Any:
        return self._key([*self._indices(head), term, column])

    def value(self, head: Any, column: Any, place: Any) -> Any:
        return self._value([*self._indices(head), column, place])

    def score(self, head: Any, row: Any, column: Any, product: Any) -> Any:
        """Return the input of the softmax. ``product``: the sum of the score."""
        attention = self._attention
        scores = self._simplified(lambda place: attention.score(place, product), attention.rows, attention.columns)
        return scores([*self._indices(head), row, column])

    def store(self, head: Any, row: Any, place: Any, value: Any) -> BufferStore:
        """Return the statement that writes an element of the result."""
        return self._attention.store([*self._indices(head), row, place], value)

    def _indices(self, head: Any) -> list[Any]:
        """Return the indices of the batch axes (sample and head) for the number of a head."""
        if not self._attention.batch:
            return []
        indices: list[Any] = []
        for extent in reversed(self._attention.batch[1:]):
            indices.insert(0, head % extent)
            head = head // extent
        return [head, *indices]

    def _simplified(self, element: Element, *extents: Any) -> Element:
        """Return ``element`` with its expressions simplified for the ``extents`` of the last axes of the place."""
        variables = variables_of(len(self._attention.batch) + len(extents), self._attention.index)
        analyzer = Analyzer()
        for variable, extent in zip(variables, [*self._attention.batch, *extents], strict=True):
            analyzer.bind(variable, Range(tirx.const(0, self._attention.index), extent))

        def load(node: Any) -> Any:
            return node.source[tuple(map(analyzer.simplify, node.indices))]

        value = structural_map(element(variables), (TensorLoad, load))
        return lambda at: replaced(value, dict(zip(variables, at, strict=True)))


class Loops:
    """Makes loops, variables and buffers with indices of type ``index``."""

    def __init__(self, index: str) -> None:
        self._index = index

    def variable(self, name: str) -> Var:
        return Var(name, self._index)

    def buffer(self, name: str, *shape: Any, scope: str = "global") -> Any:
        extents = [tirx.const(each, self._index) if isinstance(each, int) else each for each in shape]
        return tirx.decl_buffer(extents, FLOAT, name, scope=scope)

    def nest(self, body: Callable[..., Stmt], **loops: tuple[Any, Any]) -> Stmt:
        """Return loops around a statement. Each loop is given by its name, extent and kind; ``body`` takes the loop
        variables."""
        variables = [self.variable(name) for name in loops]
        statement = body(*variables)
        for variable, (extent, kind) in zip(reversed(variables), reversed(list(loops.values())), strict=True):
            size = tirx.const(extent, self._index) if isinstance(extent, int) else extent
            statement = For(variable, tirx.const(0, self._index), size, kind, statement)
        return statement

    def loop(self, name: str, extent: Any, kind: Any, body: Callable[[Var], Stmt]) -> Stmt:
        return self.nest(body, **{name: (extent, kind)})


class Softmax:
    """The softmax of rows of scores, in vectors of columns.

    Args:
        rows: number of rows.
        vectors: number of vectors in a row. Scores after the last column are -inf.
        guarded: true if a row that consists of -inf only has weights of zero.
    """

    def __init__(self, loops: Loops, rows: Any, vectors: Any, guarded: bool) -> None:
        self._loops, self._vectors, self._guarded = loops, vectors, guarded
        self.weights = loops.buffer("weights", rows, vectors * LANES)
        """The scores of each row, later overwritten by ``exp(score - largest)``."""
        self.shares = loops.buffer("shares", rows, scope="local")
        """The reciprocal of the total of each row's weights."""
        self._largest = loops.buffer("largest", rows, LANES, scope="local")

    @property
    def buffers(self) -> list[Any]:
        return [self.weights, self.shares, self._largest]

    def begin(self, row: Any, lane: Any) -> Stmt:
        """Return the statement that initialises the maximum of a row, in one lane."""
        return BufferStore(self._largest, tirx.min_value(FLOAT), [row, lane])

    def take(self, row: Any, lane: Any, column: Any) -> Stmt:
        """Return the statement that updates the maximum of a row with the score of a column, which is in ``lane`` of
        its vector."""
        return BufferStore(self._largest, tirx.max(self._largest[row, lane], self.weights[row, column]), [row, lane])

    def exponentials(self, row: Any) -> Stmt:
        """Return the statement that replaces the scores of a row by their weights, and sums the weights up."""
        loops, weights, lane = self._loops, self.weights, (LANES, ForKind.VECTORIZED)
        largest, totals = loops.buffer("row_largest", 1), loops.buffer("totals", LANES, scope="local")
        found = joined_by_pairs(tirx.max, [self._largest[row, each] for each in range(LANES)])
        if self._guarded:  # with a finite maximum, scores of -inf have weights of zero instead of NaN
            found = tirx.max(found, tirx.min_value(FLOAT))

        def weight(vector: Var) -> Stmt:
            def store(lane: Var) -> Stmt:
                at = [row, vector * LANES + lane]
                return BufferStore(weights, tirx.exp(weights[tuple(at)] - largest[0]), at)

            def add(lane: Var) -> Stmt:
                return BufferStore(totals, totals[lane] + weights[row, vector * LANES + lane], [lane])

            return SeqStmt([loops.nest(store, lane=lane), loops.nest(add, lane=lane)])

        zero = loops.nest(lambda lane: BufferStore(totals, tirx.const(0.0, FLOAT), [lane]), lane=lane)
        steps = loops.loop("vector", self._vectors, ForKind.SERIAL, weight)
        total = joined_by_pairs(added, [totals[each] for each in range(LANES)])
        one = tirx.const(1.0, FLOAT)
        if self._guarded:  # with any score above -inf, the total is at least one
            total = tirx.Select(total == 0, one, total)
        share = BufferStore(self.shares, one / total, [row])
        return block("weights", SeqStmt([BufferStore(largest, found, [0]), zero, steps, share]), [largest, totals])


def block(name: str, body: Stmt, buffers: Sequence[Any]) -> Stmt:
    """Return a statement as a block that allocates ``buffers``."""
    return SBlockRealize([], True, SBlock([], [], [], name, body, None, list(buffers)))


def ceiling(extent: Any, size: int) -> Any:
    """Return the number of parts of a size that cover an extent."""
    return (extent + (size - 1)) // size
