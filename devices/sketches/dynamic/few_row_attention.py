"""Attention of a few rows over a dynamic number of columns: a step of decoding over a growing cache.

    parallel over samples and heads; heads that share keys and values form a task, if all threads still have work
      queries                            of all rows
      for each part of the columns
        for each row
          sums                           in registers: a vector along the terms for each column of the part
          scores                         the sum of each of these vectors, pairwise, in one vector
          weights, lanes' largest        the scores with their mask; -inf after the last column
      largest; weights                   exp(weights - largest), and the sums of these
      for each part of the columns
        for each row
          results                        in registers: sums over the part, for the elements of the result
      result                             results / totals

The speed is limited by the memory that holds keys and values. Each is read once, without a copy: the terms of a key are
adjacent in memory, and packing keys into vectors of columns would cost as much as the products.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod
from typing import Any

from tvm import tirx
from tvm.ir import Range, TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import Bind, BufferStore, FloatImm, ForKind, IfThenElse, IntImm, Mul, Ramp, SeqStmt, Shuffle, Stmt, Var
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_walk

from devices.sketches.dynamic.attention_parts import Elements, Loops, Softmax, block, ceiling
from devices.sketches.nests import FLOAT
from devices.sketches.rules.attention.pattern import Attention
from devices.sketches.rules.attention.program import LANES, lanes_of
from devices.sketches.rules.attention.rule import MIN_LANES, MIN_ROWS

_MOST_UNROLLED = 16
"""Most vectors of a key for which the loop of products is unrolled."""
_MOST_PLACES = 6
"""Most vectors of the result that are summed up at once. They take twice as many registers on a processor whose
registers have half the lanes."""
_LEAST_SUMS = 4
"""Least number of independent sums, so that no addition waits for the one before."""


def few_rows_fit(rows: int | None, terms: int | None, width: int) -> bool:
    """Return true if this program can compute an attention of so many rows (None: dynamic, where this program runs only
    if the rows are few)."""
    has_few = rows is None or rows < MIN_ROWS
    return has_few and terms is not None and min(lanes_of(terms), lanes_of(width)) >= MIN_LANES


class FewRows:
    """The program of one attention of few rows.

    Args:
        attention: the attention. A dynamic number of rows must be below :data:`MIN_ROWS` whenever the program runs.
        threads: number of threads that run it. With one, no loop is parallel.
    """

    def __init__(self, attention: Attention, threads: int) -> None:
        self._attention, self._threads = attention, threads
        self._elements, self._loops = Elements(attention), Loops(attention.index)
        self.heads_together = self._heads_together()
        """Number of heads that one thread computes together."""
        most = attention.rows if isinstance(attention.rows, int) else MIN_ROWS - 1
        self._rows = attention.rows * self.heads_together
        self._parts = ceiling(attention.columns, LANES)
        self._lanes = lanes_of(attention.terms)
        self._queries = self._loops.buffer("queries", most * self.heads_together, attention.terms)
        self._results = self._loops.buffer("results", most * self.heads_together, attention.width)
        self._softmax = Softmax(self._loops, most * self.heads_together, self._parts, attention.guarded)

    def body(self) -> Stmt:
        kind = ForKind.SERIAL if self._threads == 1 else ForKind.PARALLEL
        return self._loops.loop("task", self._elements.heads // self.heads_together, kind, self._task)

    def _heads_together(self) -> int:
        """Return the number of heads that one thread computes together: as many as share keys and values, unless that
        leaves threads without work."""
        last = ([1, *self._attention.batch])[-1]
        heads = prod(each for each in self._attention.batch if isinstance(each, int))  # of at least one sample
        most = last if isinstance(last, int) else 1
        shared = [each for each in range(1, most + 1) if most % each == 0 and self._are_shared(each)]
        return min(shared, key=lambda each: (ceil(heads // each / self._threads) * each, -each))

    def _are_shared(self, heads: int) -> bool:
        """Return true if groups of so many consecutive heads have the same keys and values."""
        group, head, term, column = map(self._loops.variable, ("group", "head", "term", "column"))
        analyzer = Analyzer()
        index = self._attention.index
        for variable, extent in ((group, self._elements.heads // heads), (head, heads)):
            most = tirx.const(extent, index) if isinstance(extent, int) else extent
            analyzer.bind(variable, Range(tirx.const(0, index), most))
        at = group * heads + head
        loads: list[Any] = []
        for element in (self._elements.key(at, term, column), self._elements.value(at, column, term)):
            structural_walk(element, (TensorLoad, loads.append))
        indices = [analyzer.simplify(each) for load in loads for each in load.indices]
        return not any(each.same_as(head) for index in indices for each in undefined_vars(index))

    def _task(self, task: Var) -> Stmt:
        head, loops, softmax = self._loops.variable("head"), self._loops, self._softmax
        rows = (self._rows, ForKind.SERIAL)
        scale, key = self._scaled_key(head)

        def query(row: Var, term: Var) -> Stmt:
            value = self._elements.query(*self._place(head, row), term)
            return BufferStore(self._queries, value if scale is None else value * scale, [row, term])

        def store(row: Var, vector: Var, lane: Var) -> Stmt:
            place = vector * width + lane
            value = self._results[row, place] * softmax.shares[row]
            return self._elements.store(*self._place(head, row), place, value)

        width = lanes_of(self._attention.width)
        places = {"vector": (self._attention.width // width, ForKind.SERIAL), "lane": (width, ForKind.VECTORIZED)}
        whole = self._attention.columns // LANES
        left = self._attention.columns - whole * LANES
        steps = [
            Bind(head, task * self.heads_together),
            loops.nest(query, row=rows, term=(self._attention.terms, ForKind.SERIAL)),
            loops.nest(softmax.begin, row=rows, lane=(LANES, ForKind.VECTORIZED)),
            loops.loop("part", self._parts, ForKind.SERIAL, lambda part: self._scores(head, key, part)),
            loops.loop("row", *rows, softmax.exponentials),
            loops.nest(
                lambda row, vector, lane: BufferStore(
                    self._results, tirx.const(0.0, FLOAT), [row, vector * width + lane]
                ),
                row=rows,
                **places,
            ),
            loops.loop("part", whole, ForKind.SERIAL, lambda part: self._sums(head, part * LANES, None)),
            self._sums(head, whole * LANES, left),
            loops.nest(store, row=rows, **places),
        ]
        return block("task", SeqStmt(steps), [self._queries, self._results, *softmax.buffers])

    def _place(self, head: Any, row: Any) -> tuple[Any, Any]:
        """Return the head that a row of a task belongs to, and the number of the row in that head."""
        rows = self._attention.rows
        return (head, row) if self.heads_together == 1 else (head + row // rows, row % rows)

    def _scaled_key(self, head: Any) -> tuple[Any | None, Callable[[Any, Any], Any]]:
        """Return the constant that all keys are multiplied by, or None, and a function that returns an element of the
        keys without that factor."""
        term, column = map(self._loops.variable, ("term", "column"))
        element = self._elements.key(head, term, column)
        if isinstance(element, Mul) and isinstance(element.b, FloatImm):
            return element.b, lambda term, column: self._elements.key(head, term, column).a
        return None, lambda term, column: self._elements.key(head, term, column)

    def _scores(self, head: Any, key: Callable[[Any, Any], Any], part: Var) -> Stmt:
        """Return the statement that computes the scores of a part, with their mask."""
        first, columns, loops = self._loops.variable("first"), self._attention.columns, self._loops
        lane = (LANES, ForKind.VECTORIZED)

        def row_of(is_whole: bool) -> Callable[[Var], Stmt]:
            def column(at: Any) -> Any:
                return first + at if is_whole else tirx.min(first + at, columns - 1)

            def masked(row: Any, products: Any, lane: Var) -> Stmt:
                value = self._elements.score(*self._place(head, row), column(lane), products[lane])
                if not is_whole:
                    value = tirx.Select(first + lane < columns, value, tirx.const(float("-inf"), FLOAT))
                return BufferStore(self._softmax.weights, value, [row, first + lane])

            def scores(row: Var) -> Stmt:
                products = loops.buffer("products", LANES, scope="local")
                sums = loops.buffer("sums", self._lanes, self._lanes, scope="local")
                tiles = [
                    each
                    for start in range(0, LANES, self._lanes)
                    for each in self._products(row, lambda term, at: key(term, column(at)), start, sums, products)
                ]
                stored = loops.loop("lane", *lane, lambda lane: masked(row, products, lane))
                largest = loops.loop("lane", *lane, lambda lane: self._softmax.take(row, lane, first + lane))
                return block("scores", SeqStmt([*tiles, stored, largest]), [products, sums])

            return scores

        branches = [loops.loop("row", self._rows, ForKind.SERIAL, row_of(each)) for each in (True, False)]
        return SeqStmt([Bind(first, part * LANES), IfThenElse(first + LANES <= columns, *branches)])

    def _products(self, row: Any, key: Callable[[Any, Any], Any], start: int, sums: Any, products: Any) -> list[Stmt]:
        """Return the statements that compute the products of a query with some keys of a part. There are as many keys
        as a vector along the terms has lanes, from the column ``start`` on.

        As soon as two vectors of sums exist, they are combined to one vector, which holds the half sums of both. So few
        vectors are alive at a time.
        """
        lanes, statements = self._lanes, []
        for at in range(lanes):
            statements += self._sums_of_column(row, key, start + at, sums, at)
            size = 1
            while at & size:
                statements.append(_joined(sums, at - 2 * size + 1, at - size + 1, size))
                size *= 2
        return [*statements, BufferStore(products, _vector(sums, 0), [_ramp(start, sums)])]

    def _sums_of_column(self, row: Any, key: Callable[[Any, Any], Any], column: int, sums: Any, at: int) -> list[Stmt]:
        """Return the statements that sum up the products for one column of the part, separately in each lane of the
        vector ``at``."""
        lanes = self._lanes
        vectors = self._attention.terms // lanes

        def product(vector: Any, lane: Var) -> Any:
            term = vector * lanes + lane
            return self._queries[row, term] * key(term, column)

        lane = (lanes, ForKind.VECTORIZED)
        first = self._loops.loop("lane", *lane, lambda lane: BufferStore(sums, product(0, lane), [at, lane]))
        kind = ForKind.UNROLLED if vectors <= _MOST_UNROLLED else ForKind.SERIAL
        others = self._loops.nest(
            lambda vector, lane: BufferStore(sums, sums[at, lane] + product(vector + 1, lane), [at, lane]),
            vector=(vectors - 1, kind),
            lane=lane,
        )
        return [first, others]

    def _sums(self, head: Any, first: Any, left: Any | None) -> Stmt:
        """Return the statement that adds a part of the columns to the results of all rows. The part is a whole vector
        of columns, or, after the whole vectors, the last ``left`` columns."""
        lanes = lanes_of(self._attention.width)
        vectors = self._attention.width // lanes
        places = max(each for each in range(1, _MOST_PLACES + 1) if vectors % each == 0)
        chains = 1 if left is not None else ceil(_LEAST_SUMS / places)
        loops, results, weights = self._loops, self._results, self._softmax.weights
        tile = {"vector": (places, ForKind.UNROLLED), "lane": (lanes, ForKind.VECTORIZED)}

        def sums_of(row: Var, at: Var) -> Stmt:
            sums = loops.buffer("sums", chains, places, lanes, scope="local")

            def place(vector: Any, lane: Any) -> Any:
                return (at * places + vector) * lanes + lane

            def begin(chain: int) -> Stmt:
                def step(vector: Var, lane: Var) -> Stmt:
                    value = tirx.const(0.0, FLOAT) if chain else results[row, place(vector, lane)]
                    return BufferStore(sums, value, [chain, vector, lane])

                return loops.nest(step, **tile)

            def add(column: Any, chain: int) -> Stmt:
                def step(vector: Var, lane: Var) -> Stmt:
                    product = weights[row, column] * self._elements.value(head, column, place(vector, lane))
                    return BufferStore(sums, sums[chain, vector, lane] + product, [chain, vector, lane])

                return loops.nest(step, **tile)

            def end(vector: Var, lane: Var) -> Stmt:
                value = sums[0, vector, lane]
                for chain in range(1, chains):
                    value = value + sums[chain, vector, lane]
                return BufferStore(results, value, [row, place(vector, lane)])

            if left is None:
                added = [add(first + each, each % chains) for each in range(LANES)]
            else:
                added = [loops.loop("left", left, ForKind.SERIAL, lambda each: add(first + each, 0))]
            return block("sums", SeqStmt([*map(begin, range(chains)), *added, loops.nest(end, **tile)]), [sums])

        return loops.nest(sums_of, row=(self._rows, ForKind.SERIAL), at=(vectors // places, ForKind.SERIAL))


def _joined(sums: Any, one: int, other: int, columns: int) -> Stmt:
    """Return the statement that combines two vectors into one, which overwrites the first. Each vector holds the
    partial sums of ``columns`` columns. Neighbours are added, so each column then takes half the lanes.

    With one or two columns, lanes move within groups of four; with more, as blocks of four lanes within groups of 16.
    Processors have instructions for such moves.
    """
    lanes = int(sums.shape[-1])
    unit = 1 if columns < 4 else 4
    group = min(4 * unit, lanes)
    halves = [
        [
            vector + start + (pair + half) * unit + lane
            for start in range(0, lanes, group)
            for vector in (0, lanes)
            for pair in range(0, group // unit, 2)
            for lane in range(unit)
        ]
        for half in (0, 1)
    ]
    vectors = [_vector(sums, each) for each in (one, other)]
    low, high = (Shuffle(vectors, [IntImm("int32", lane) for lane in half]) for half in halves)
    return BufferStore(sums, low + high, [one, _ramp(0, sums)])


def _vector(sums: Any, column: int) -> Any:
    return sums[column, _ramp(0, sums)]


def _ramp(first: int, sums: Any) -> Any:
    """Return the indices of a vector from ``first`` on, as wide as the vectors of ``sums``."""
    lanes = sums.shape[-1]
    index = str(lanes.ty)
    return Ramp(tirx.const(first, index), tirx.const(1, index), int(lanes))
