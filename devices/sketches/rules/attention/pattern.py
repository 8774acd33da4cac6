"""The attention that a program computes.

    scores[.., r, c] = sum over k of query[.., r, k] * key[.., k, c]
    weights = softmax along c of score(scores)
    result[.., r, d] = sum over c of weights[.., r, c] * value[.., c, d]

The inputs and the result may be copied before and after. ``score`` is the element-wise function that the program
applies to each score: a scale, a mask. Rows that consist of -inf only may be guarded: their weights are then zero
instead of NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.tirx import Add, BufferStore, Cast, Div, IndexMap, IntImm, IterVar, Max, Mul, Not, PrimFunc, Select, Sub
from tvm_ffi import structural_equal, structural_map, structural_walk

from devices.sketches.description.accesses import DATA_PARALLEL, REDUCTION
from devices.sketches.nests import FLOAT, are_equal, axes_of, replaced, variables_of


@dataclass(frozen=True)
class Attention:
    """An attention in float32."""

    main: PrimFunc
    batch: tuple[Any, ...]
    """Extents of the axes before the rows: samples and heads. Each is an integer, or an expression of a dynamic
    extent."""
    rows: Any
    """Number of rows: an integer, or an expression of a dynamic extent."""
    columns: Any
    """Number of columns: an integer, or an expression of a dynamic extent."""
    terms: int
    """Number of terms in the sum of a score."""
    width: int
    """Extent of the last axis of the result."""
    guarded: bool
    """True if rows that consist of -inf only have weights of zero."""
    _elements: _Elements
    _scores: SBlock
    _result: SBlock
    _output: Any

    @property
    def index(self) -> str:
        """Type of the indices."""
        return str(self._scores.iter_vars[0].var.ty.dtype)

    def query(self, at: Sequence[Any]) -> Any:
        """Return the element (.., row, term) of the queries."""
        return self._elements.of(_factors(self._scores)[0].source, at)

    def key(self, at: Sequence[Any]) -> Any:
        """Return the element (.., term, column) of the keys."""
        return self._elements.of(_factors(self._scores)[1].source, at)

    def value(self, at: Sequence[Any]) -> Any:
        """Return the element (.., column, place) of the values."""
        return self._elements.of(_factors(self._result)[1].source, at)

    def score(self, at: Sequence[Any], product: Any) -> Any:
        """Return the input of the softmax at (.., row, column). ``product``: the sum of the score there."""
        weight = _Weight.of(self._elements.of(_factors(self._result)[0].source, at))
        assert weight is not None
        scores = self._scores.writes[0].source

        def load(node: Any) -> Any:
            return product if node.source.same_as(scores) else node

        return structural_map(weight.score, (TensorLoad, load))

    def store(self, at: Sequence[Any], value: Any) -> BufferStore:
        """Return the statement that writes the element (.., row, place) of the result."""
        buffer, places = self._output
        variables, indices = places
        known = dict(zip(variables, at, strict=True))
        return BufferStore(buffer, value, [replaced(each, known) for each in indices])


def attention_of(module: tvm.IRModule) -> Attention | None:
    """Return the attention that the function ``main`` of ``module`` computes; None if it computes anything else."""
    main = module["main"]
    blocks: list[SBlock] = []
    root = main.body.block
    structural_walk(root.body, (SBlock, blocks.append))
    if any(not isinstance(block.body, BufferStore) for block in blocks):
        return None
    reductions = [block for block in blocks if any(int(each.iter_type) == REDUCTION for each in block.iter_vars)]
    if len(reductions) not in (4, 5):
        return None
    scores, largest, total, *guards, result = reductions
    if not _is_product(scores) or not _is_product(result) or not isinstance(largest.body.value, Max):
        return None
    elements = _Elements(blocks)
    *batch, rows, columns, terms = (_extent(each) for each in scores.iter_vars)
    *same, _, width, _ = (_extent(each) for each in result.iter_vars)
    if len(batch) != len(same) or not all(map(structural_equal, batch, same)):
        return None
    if not isinstance(terms, int) or not isinstance(width, int):
        return None
    if not _is_softmax(elements, scores, largest, total, guards, result):
        return None
    output = _output(elements, result, main)
    if output is None:
        return None
    return Attention(main, tuple(batch), rows, columns, terms, width, bool(guards), elements, scores, result, output)


def _extent(iteration: IterVar) -> Any:
    """Return the extent of an iteration: an integer, or an expression."""
    extent = iteration.dom.extent
    return int(extent) if isinstance(extent, IntImm) else extent


class _Elements:
    """Elements of buffers, as expressions of the results of reductions and of the program's arguments."""

    def __init__(self, blocks: Sequence[SBlock]) -> None:
        self._copies = {
            block.body.buffer: block
            for block in blocks
            if all(int(each.iter_type) == DATA_PARALLEL for each in block.iter_vars)
        }

    @property
    def written(self) -> list[Any]:
        """Buffers that element-wise blocks write."""
        return list(self._copies)

    def of(self, buffer: Any, at: Sequence[Any]) -> Any:
        """Return the element ``at`` of a buffer."""
        return self.expanded(buffer[tuple(at)])

    def expanded(self, expression: Any) -> Any:
        """Return an expression in which loads of the results of element-wise blocks are replaced by the expressions
        that compute them."""

        def load(node: Any) -> Any:
            block = self._copies.get(node.source)
            if block is None:
                return node
            known = dict(zip(axes_of(block), node.indices, strict=True))
            return self.expanded(replaced(block.body.value, known))

        return structural_map(expression, (TensorLoad, load))


@dataclass(frozen=True)
class _Weight:
    """The parts of ``exp(score - largest) * (1 / total)``, or of a selection that is zero if the guard is false."""

    score: Any
    largest: TensorLoad
    total: TensorLoad
    guard: TensorLoad | None = None

    @staticmethod
    def of(expression: Any) -> _Weight | None:
        """Return the parts of an expression of this form; None for another form."""
        if isinstance(expression, Select):
            guard, weight = _guard_of(expression), _Weight.of(expression.false_value)
            return None if guard is None or weight is None else replace(weight, guard=guard)
        if not isinstance(expression, Mul) or not isinstance(expression.b, Div):
            return None
        difference = _argument_of_exp(expression.a)
        one, total = expression.b.a, expression.b.b
        if difference is None or not structural_equal(one, tirx.const(1.0, FLOAT)) or not isinstance(total, TensorLoad):
            return None
        if not isinstance(difference.b, TensorLoad):
            return None
        return _Weight(difference.a, difference.b, total)


def _guard_of(choice: Select) -> TensorLoad | None:
    """Return ``g`` of ``0 if not bool(g) else ..``; None for another choice."""
    loads: list[Any] = []
    structural_walk(choice.condition, (TensorLoad, loads.append))
    if len(loads) != 1 or not structural_equal(choice.true_value, tirx.const(0.0, FLOAT)):
        return None
    for index in ("int32", "int64"):
        expected = tirx.const(0, index) < Cast(index, Not(Cast("bool", loads[0])))
        if structural_equal(choice.condition, expected):
            return loads[0]
    return None


def _argument_of_exp(expression: Any) -> Sub | None:
    if not isinstance(expression, Call) or str(getattr(expression.op, "name", "")) != "tirx.exp":
        return None
    (argument,) = expression.args
    return argument if isinstance(argument, Sub) else None


def _factors(product: SBlock) -> tuple[TensorLoad, TensorLoad]:
    """Return the loads that a product multiplies."""
    term = product.body.value.b
    return term.a, term.b


def _is_product(block: SBlock) -> bool:
    """Return true for ``c[.., i, j] = sum over k of a[.., i, k] * b[.., k, j]`` in float32."""
    kinds = [int(each.iter_type) for each in block.iter_vars]
    value = block.body.value
    if kinds != [DATA_PARALLEL] * (len(kinds) - 1) + [REDUCTION] or len(kinds) < 3:
        return False
    if not isinstance(value, Add) or not isinstance(value.b, Mul):
        return False
    loads = _factors(block)
    if not all(isinstance(each, TensorLoad) and str(each.source.dtype) == FLOAT for each in loads):
        return False
    *batch, row, column, term = axes_of(block)
    indices = [[*each.indices] for each in loads]
    return (
        are_equal([*block.body.indices], [*batch, row, column])
        and are_equal(indices[0], [*batch, row, term])
        and are_equal(indices[1], [*batch, term, column])
    )


def _is_softmax(
    elements: _Elements, scores: SBlock, largest: SBlock, total: SBlock, guards: Sequence[SBlock], result: SBlock
) -> bool:
    """Return true if the first factor of ``result`` is the softmax of the scores along their last axis."""
    axes = [each.var if _extent(each) != 1 else tirx.const(0, each.var.ty.dtype) for each in result.iter_vars]
    *batch, row, _, column = axes
    place = [*batch, row, column]
    analyzer = Analyzer()
    for iteration in result.iter_vars:
        analyzer.bind(iteration.var, iteration.dom)
    weight = _Weight.of(elements.of(_factors(result)[0].source, place))
    if weight is None:
        return False
    if not weight.largest.source.same_as(largest.body.buffer) or not weight.total.source.same_as(total.body.buffer):
        return False

    def simplified(expression: Any) -> Any:
        return structural_map(
            expression, (TensorLoad, lambda load: load.source[tuple(map(analyzer.simplify, load.indices))])
        )

    def term(block: SBlock, at: TensorLoad) -> Any:
        axes = axes_of(block)
        known = dict(zip(axes, [*at.indices, column], strict=True))
        return simplified(elements.expanded(replaced(block.body.value.b, known)))

    score = simplified(weight.score)
    loads: list[Any] = []
    structural_walk(score, (TensorLoad, loads.append))
    read = [load for load in loads if load.source.same_as(scores.body.buffer)]
    difference = _argument_of_exp(term(total, weight.total))
    guarding = [] if weight.guard is None else [weight.guard.source]
    if guarding != [guard.body.buffer for guard in guards]:
        return False
    for guard in guards:
        is_number = Cast("int8", Not(score < tirx.min_value(FLOAT)))
        if not isinstance(guard.body.value, Max) or not structural_equal(term(guard, weight.guard), is_number):
            return False
    return (
        bool(read)
        and all(are_equal([*load.indices], place) for load in read)
        and structural_equal(term(largest, weight.largest), score)
        and isinstance(total.body.value, Add)
        and difference is not None
        and structural_equal(difference.a, score)
        and structural_equal(simplified(difference.b), simplified(weight.largest))
    )


def _output(elements: _Elements, result: SBlock, main: PrimFunc) -> Any | None:
    """Return the buffer that the program writes, and a map from places in the result to indices of this buffer, as
    variables and expressions of them; None if the buffer is not merely a copy of the result."""
    written = [each for each in elements.written if any(each.same_as(param) for param in main.params)]
    index = str(result.iter_vars[0].var.ty.dtype)
    places = variables_of(len(result.iter_vars) - 1, index)
    if not written:
        if not any(result.body.buffer.same_as(param) for param in main.params):
            return None
        return result.body.buffer, (places, places)
    (buffer,) = written
    variables = variables_of(len(buffer.shape), index)
    analyzer = Analyzer()
    for variable, extent in zip(variables, buffer.shape, strict=True):
        analyzer.bind(variable, tvm.ir.Range(tirx.const(0, index), extent))
    element = elements.of(buffer, variables)
    if not isinstance(element, TensorLoad) or not element.source.same_as(result.body.buffer):
        return None
    moved = IndexMap(variables, list(map(analyzer.simplify, element.indices)), None)
    back = moved.inverse([tvm.ir.Range(tirx.const(0, index), extent) for extent in buffer.shape])
    return buffer, (list(back.initial_indices), list(back.final_indices))
