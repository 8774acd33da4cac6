"""Computations and accesses of a TensorIR block, in the plain types of :mod:`fleet_tune.base.sketch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import Add, BufferStore, Cast, Div, IntImm, Max, Min, Mul, PrimFunc, Select, Sub, Var
from tvm_ffi import structural_map, structural_visit, structural_walk

from devices.sketches.byte_operators import integer_dot
from devices.sketches.description.index_digits import Terms, index_rows, terms_of
from devices.sketches.description.undescribed import UndescribedError
from devices.sketches.half_operators import is_dot2
from fleet_tune.base.domain import Arithmetic
from fleet_tune.base.sketch import Access, Axis, Scope

# Values of tvm.tirx.IterVar.iter_type.
DATA_PARALLEL = 0
REDUCTION = 2

_ARITHMETIC = (Add, Sub, Mul, Div, Max, Min)
Values = list[tuple[Var, Any]]
# A transcendental function costs about as much as this many additions.
_CALL_OPERATIONS = 8
# One instruction with its addition, as a multiply-add of float32 is.
_DOT_OPERATIONS = 2
_CALLS = ("tirx.exp", "tirx.log", "tirx.sqrt", "tirx.rsqrt", "tirx.tanh", "tirx.erf", "tirx.sigmoid", "tirx.pow")


@dataclass(frozen=True)
class BlockFacts:
    """A leaf block: its axes, accesses and operations per point, independent of its loops."""

    name: str
    axes: tuple[Axis, ...]
    accesses: tuple[Access, ...]
    flop_per_point: float
    arithmetic: Arithmetic

    @property
    def points(self) -> int:
        return prod(axis.extent for axis in self.axes)


@dataclass(frozen=True)
class Rebinding:
    """Other axes on which a block is described, after an rfactor, blockize or a change of layout has made new iteration
    variables from these axes."""

    axes: tuple[Axis, ...]
    """The axes on which the block is described."""
    values: tuple[tuple[int, int, int], ...]
    """For every iteration variable of the block ``(axis, divisor, extent)``: the variable is ``axis // divisor %
    extent``."""
    partial: tuple[int, int] | None = None
    """Position of the iteration variable that counts partial results, and the axis that replaces it in accesses to the
    buffer of partial results; None without partial results."""


def leaf_blocks(func: PrimFunc) -> dict[str, SBlock]:
    """Return the leaf blocks of ``func`` (blocks without blocks inside), by name, in program order."""
    return {name: path[-1] for name, path in block_paths(func).items()}


def leaf_name(block: SBlock) -> str:
    """Return the name of the first leaf block in ``block``: its own name, if it is a leaf."""
    return str(next(path[-1].name_hint for path in _descend([block])))


def block_paths(func: PrimFunc) -> dict[str, list[SBlock]]:
    """Return the path of every leaf block, by its name, in program order: the blocks from the root to the leaf."""
    return {path[-1].name_hint: path for path in _descend([func.body.block])}


def block_facts(
    func: PrimFunc,
    path: Sequence[SBlock],
    rebinding: Rebinding | None = None,
    old_shape: Callable[[Any], tuple[int, ...] | None] = lambda _buffer: None,
    name_of: Callable[[Any], str] = lambda buffer: str(buffer.name),
) -> BlockFacts | None:
    """Return the facts of the leaf block at the end of ``path``; None if an access is neither affine in digits of its
    axes nor a look-up (:func:`_looked_up`).

    Args:
        func: the function.
        path: the blocks from the root to the block.
        rebinding: other axes on which to describe the block.
        old_shape: returns the former shape of a buffer whose layout follows from decisions; each of its dimensions is
            one of the spatial axes, in their order. Axes of extent 1 may have no dimension.
        name_of: returns the name of a buffer.
    """
    block = path[-1]
    iterations = [iteration for each in path[1:] for iteration in each.iter_vars]
    view = _View([iteration.var for iteration in iterations], tuple(axis_of(each) for each in iterations), rebinding)
    touched, operations, arithmetic = _touched(block)
    written = [buffer for buffer, _, write in touched if write]
    parsed: list[list[Terms]] = []
    for buffer, indices, write in touched:
        if (shape := old_shape(buffer)) is not None:
            parsed.append(view.spatial_rows(shape))
            continue
        partial = any(buffer.same_as(each) for each in written)
        rows = view.rows(indices, None if write else buffer.shape, partial)
        if any(row is None for row in rows):
            return None
        parsed.append([row for row in rows if row is not None])
    rewritten = index_rows(view.axes, parsed)
    if rewritten is None:
        return None
    axes, indexed = rewritten
    weights = [func.params[int(i)] for i in (func.attrs or {}).get("layout_free_buffers", [])]
    accesses: list[Access] = []
    for (buffer, _, write), index in zip(touched, indexed, strict=True):
        access = Access(
            buffer=name_of(buffer),
            shape=old_shape(buffer) or tuple(int(n) for n in buffer.shape),
            element_bytes=max(1, _bits(buffer) // 8),
            index=index,
            write=write,
            scope=_scope(buffer),
            packed=not write and any(buffer.same_as(weight) for weight in weights),
            row_align=_row_align(block) if write else (0, 0),
        )
        if access not in accesses:
            accesses.append(access)
    return BlockFacts(str(block.name_hint), axes, tuple(accesses), operations, arithmetic)


def _touched(block: SBlock) -> tuple[list[tuple[Any, list[Any], bool]], float, Arithmetic]:
    """Return the accesses of a block (buffer, indices, true for a write), its operations per point, and their
    arithmetic."""
    touched: list[tuple[Any, list[Any], bool]] = []
    arithmetic: Arithmetic = "float32"

    def load(node: TensorLoad) -> None:
        touched.append((node.source, list(node.indices), False))

    def call(node: Call) -> None:
        nonlocal arithmetic
        if integer_dot(node) is not None:
            arithmetic = "int8"
        if is_dot2(node):
            arithmetic = "bfloat16"

    stores: list[BufferStore] = []

    def store(node: BufferStore) -> None:
        stores.append(node)
        touched.append((node.buffer, list(node.indices), True))

    structural_walk(block.body, [(TensorLoad, load), (BufferStore, store), (Call, call)])
    operations = _operations(block.body)
    if not operations and any(int(each.iter_type) == REDUCTION for each in block.iter_vars):
        # Sums of integers, as in a depthwise convolution of bytes. In other blocks, integers are mostly indices.
        operations = sum(_integer_operations(store.value) for store in stores)
    return touched, operations, arithmetic


def _operations(node: Any) -> float:
    """Return the float operations of a statement or expression."""
    counts = [0.0]

    def operation(each: Any, visitor: Any) -> None:
        counts[-1] += _is_float(each)
        visitor.default_visit(each)

    def call(each: Call, visitor: Any) -> None:
        counts[-1] += _CALL_OPERATIONS * (getattr(each.op, "name", "") in _CALLS)
        counts[-1] += _DOT_OPERATIONS * (integer_dot(each) is not None)
        counts[-1] += is_dot2(each)  # the addition to the sum is a float operation, and is counted there
        visitor.default_visit(each)

    def selection(each: Select, visitor: Any) -> None:
        visitor.visit(each.condition)
        parts = []
        for value in (each.true_value, each.false_value):
            counts.append(0.0)
            visitor.visit(value)
            parts.append(counts.pop())
        # If the condition depends on indices only, one of the two is computed at each point. The longer one counts.
        counts[-1] += sum(parts) if _reads(each.condition) else max(parts)

    structural_visit(node, [(Call, call), (Select, selection), *((kind, operation) for kind in _ARITHMETIC)])
    return counts[0]


def _reads(expression: Any) -> bool:
    """Return true if an expression reads a tensor."""
    loads: list[TensorLoad] = []
    structural_walk(expression, (TensorLoad, loads.append))
    return bool(loads)


def _integer_operations(value: Any) -> float:
    """Return the operations on integers in a value, without those that compute indices of loads."""
    if isinstance(value, _ARITHMETIC):
        return 1.0 + _integer_operations(value.a) + _integer_operations(value.b)
    return _integer_operations(value.value) if isinstance(value, Cast) else 0.0


class _View:
    """The axes on which a block is described: its own, or those of a rebinding."""

    def __init__(self, iter_vars: Sequence[Var], axes: tuple[Axis, ...], rebinding: Rebinding | None) -> None:
        self._iter_vars = iter_vars
        self._rebinding = rebinding
        self.axes = axes if rebinding is None else rebinding.axes
        self._variables = iter_vars if rebinding is None else [Var(a.name, iter_vars[0].ty) for a in self.axes]

    def spatial_rows(self, shape: Sequence[int]) -> list[Terms]:
        """Return the terms of each index of an access to a buffer of ``shape`` whose dimensions are the spatial axes,
        in their order.

        Axes of extent 1 without a dimension are left out (those of a filter of 1 x 1 points, which count as spatial).
        Raises :class:`UndescribedError` if a longer axis has no dimension.
        """
        longer = [at for at, axis in enumerate(self.axes) if not axis.reduction and axis.extent > 1]
        if len(longer) != sum(extent > 1 for extent in shape):
            raise UndescribedError("the dimensions of a buffer are not the spatial axes of its block")
        numbers = iter(longer)
        return [{(at := next(numbers), 1, self.axes[at].extent): 1} if extent > 1 else {} for extent in shape]

    def rows(self, indices: Sequence[Any], read_shape: Sequence[Any] | None, partial: bool) -> list[Terms | None]:
        """Return the terms of each index; None for an index that is neither affine nor a look-up.

        ``read_shape``: shape of the buffer for a read; None for a write. ``partial``: true if the block writes the
        buffer, which may then hold partial results.
        """
        if self._rebinding is not None:
            replaced = _replacements(self._rebinding, self._iter_vars, self._variables, partial)
            indices = [_simplified(index, replaced, self._variables, self.axes) for index in indices]
        rows = [terms_of(index, self._variables, self.axes) for index in indices]
        if read_shape is None:
            return rows
        looked_up = [_looked_up(*each, self._variables, self.axes) for each in zip(indices, read_shape, strict=True)]
        return [row if row is not None else other for row, other in zip(rows, looked_up, strict=True)]


def axis_of(iteration: Any) -> Axis:
    """Return an iteration variable as an axis. Raises :class:`UndescribedError`."""
    name = str(iteration.var.name)
    return Axis(name, extent_of(iteration.dom, name), int(iteration.iter_type) == REDUCTION)


def extent_of(loop: Any, name: str) -> int:
    """Return the extent of a loop or range. Raises :class:`UndescribedError` if it is not a number, as for windows of
    different sizes."""
    if not isinstance(loop.extent, int | IntImm):
        raise UndescribedError(f"the extent of the loop {name} depends on other loops")
    return int(loop.extent)


def _looked_up(index: Any, size: Any, variables: Sequence[Var], axes: Sequence[Axis]) -> Terms | None:
    """Return approximate terms for an index that is read from a tensor (the rows of an embedding); None if ``index`` is
    not such a look-up.

    The terms give a different index for each point of the axes that ``index`` depends on, spread evenly over the
    dimension. So as many elements are touched as if no index came twice, and no elements count as adjacent that may not
    be.
    """
    loads: list[TensorLoad] = []
    used: list[Any] = []
    structural_walk(index, [(TensorLoad, loads.append), (Var, used.append)])
    if not loads:
        return None
    moving = [at for at, variable in enumerate(variables) if any(variable.same_as(each) for each in used)]
    terms: Terms = {}
    step = max(1, int(size) // max(1, prod(axes[at].extent for at in moving)))
    for at in reversed(moving):
        if axes[at].extent > 1:
            terms[(at, 1, axes[at].extent)] = step
        step *= axes[at].extent
    return terms


def _replacements(rebinding: Rebinding, iter_vars: Sequence[Var], variables: Sequence[Var], partial: bool) -> Values:
    """Return pairs of every iteration variable and its value on the axes of the rebinding. ``partial``: for accesses to
    the buffer of partial results."""
    replaced: Values = []
    for position, (variable, (axis, divisor, extent)) in enumerate(zip(iter_vars, rebinding.values, strict=True)):
        if partial and rebinding.partial is not None and rebinding.partial[0] == position:
            replaced.append((variable, variables[rebinding.partial[1]]))
            continue
        value = variables[axis]
        value = value if divisor == 1 else tvm.tirx.floordiv(value, divisor)
        whole = -(-rebinding.axes[axis].extent // divisor) <= extent
        replaced.append((variable, value if whole else tvm.tirx.floormod(value, extent)))
    return replaced


def _simplified(index: Any, replaced: Values, variables: Sequence[Var], axes: Sequence[Axis]) -> Any:
    analyzer = tvm.sym.Analyzer()
    for variable, axis in zip(variables, axes, strict=True):
        analyzer.bind(variable, tvm.ir.Range(0, axis.extent))

    def value(variable: Var) -> Any:
        return next((value for old, value in replaced if old.same_as(variable)), variable)

    return analyzer.simplify(structural_map(index, (Var, value)))


def _descend(path: list[SBlock]) -> Iterator[list[SBlock]]:
    inner: list[SBlock] = []

    def visit(realize: SBlockRealize, _visitor: Any) -> None:
        inner.append(realize.block)  # without visiting further: the blocks inside are found by the next step

    structural_visit(path[-1].body, (SBlockRealize, visit))
    if not inner:
        yield path
    for block in inner:
        yield from _descend([*path, block])


def _row_align(block: SBlock) -> tuple[int, int]:
    """Return the padding of rows in the buffer that a block writes (storage_align of the last dimension but one) as
    factor and offset; (0, 0) without padding."""
    for _, axis, factor, offset in block.annotations.get("buffer_dim_align", []):
        if int(axis) == len(block.writes[0].source.shape) - 2:
            return int(factor), int(offset)
    return 0, 0


def _is_float(node: Any) -> bool:
    return str(node.ty).startswith(("float", "bfloat"))


def _bits(buffer: Any) -> int:
    return int(tvm.DataType(str(buffer.dtype)).bits)


def _scope(buffer: Any) -> Scope:
    scope = str(buffer.scope())
    return "shared" if scope.startswith("shared") else "local" if scope.startswith(("local", "wmma")) else "global"
