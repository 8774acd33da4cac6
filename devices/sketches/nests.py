"""Construction of loop nests around blocks of TensorIR."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.s_tir.analysis import get_sblock_access_region
from tvm.tirx import BufferStore, For, ForKind, IterVar, SeqStmt, Stmt, Var
from tvm_ffi import structural_equal, structural_map, structural_walk

from devices.sketches.description.accesses import DATA_PARALLEL, REDUCTION

FLOAT = "float32"


class Nests:
    """The loop nests of a program in float32, with indices of type ``index``."""

    def __init__(self, index: str) -> None:
        self._index = index
        self._buffers: list[Any] = []
        self._nests: list[Stmt] = []

    def buffer(self, name: str, *shape: int) -> Any:
        """Return a new buffer of the program."""
        made = buffer_of(name, shape, self._index)
        self._buffers.append(made)
        return made

    def element_wise(self, buffer: Any, value: Callable[..., Any], reads: Callable[..., Any] | None = None) -> None:
        """Add a block that writes every element of ``buffer``.

        ``reads``: returns a shorter expression that reads the same elements as ``value``, from which TVM finds the
        regions that the block reads. If ``value`` reads each element many times, TVM would take long to find them.
        """
        variables = variables_of(len(buffer.shape), self._index)
        body, accesses = (BufferStore(buffer, each(*variables), variables) for each in (value, reads or value))
        self.add(nest(buffer.name, buffer.shape, variables, body, accesses=accesses))

    def sum(self, buffer: Any, terms: int, value: Callable[..., Any]) -> None:
        """Add a block that sums up ``terms`` values for every element of ``buffer``. The reduction loop is the last but
        one."""
        self._reduce(buffer, terms, tirx.const(0.0, FLOAT), lambda one, other: one + other, value)

    def largest(self, buffer: Any, terms: int, value: Callable[..., Any]) -> None:
        """Add a block that takes the largest of ``terms`` values for every element of ``buffer``, with the loops of
        :meth:`sum`."""
        self._reduce(buffer, terms, tirx.min_value(FLOAT), tirx.max, value)

    def _reduce(
        self, buffer: Any, terms: int, first: Any, operator: Callable[[Any, Any], Any], value: Callable[..., Any]
    ) -> None:
        variables = variables_of(len(buffer.shape) + 1, self._index)
        *outer, summed, last = variables
        at = (*outer, last)
        start = BufferStore(buffer, first, at)
        step = BufferStore(buffer, operator(buffer[at], value(*at, summed)), at)
        extents = [*buffer.shape[:-1], terms, buffer.shape[-1]]
        self.add(nest(buffer.name, extents, variables, step, start=start, reduced=[len(outer)]))

    def add(self, nest: Stmt) -> None:
        """Add a nest."""
        self._nests.append(nest)

    def body(self) -> Stmt:
        """Return the body of a function that consists of the nests."""
        root = SBlock([], [], [], "root", SeqStmt(self._nests), None, self._buffers)
        return SBlockRealize([], True, root)


def nest(
    name: str,
    extents: Sequence[Any],
    variables: Sequence[Var],
    body: Stmt,
    *,
    start: Stmt | None = None,
    reduced: Collection[int] = (),
    annotations: Mapping[str, Any] | None = None,
    accesses: Stmt | None = None,
) -> Stmt:
    """Return a block in loops, one for each of its ``variables``. ``reduced``: positions of the reduction variables;
    ``accesses``: see :func:`block_of`."""
    kinds = [REDUCTION if at in reduced else DATA_PARALLEL for at in range(len(extents))]
    index = str(variables[0].ty.dtype)
    sizes = [tirx.const(int(extent), index) for extent in extents]
    zero = tirx.const(0, index)
    iterations = [
        IterVar(tvm.ir.Range(zero, size), variable, kind)
        for size, variable, kind in zip(sizes, variables, kinds, strict=True)
    ]
    loops = [Var(f"i{at}", index) for at in range(len(extents))]
    statement: Stmt = SBlockRealize(loops, True, block_of(name, iterations, body, start, annotations, accesses))
    for loop, size in zip(reversed(loops), reversed(sizes), strict=True):
        statement = For(loop, zero, size, ForKind.SERIAL, statement)
    return statement


def block_of(
    name: str,
    iterations: Sequence[IterVar],
    body: Stmt,
    start: Stmt | None = None,
    annotations: Mapping[str, Any] | None = None,
    accesses: Stmt | None = None,
) -> SBlock:
    """Return a block with the regions that it reads and writes. ``accesses``: a statement that reads and writes the
    same regions as ``body``; None: ``body`` itself."""
    accesses = body if accesses is None else accesses
    touched: list[Any] = []
    structural_walk(accesses, [(TensorLoad, lambda each: touched.append(each.source))])
    structural_walk(accesses, [(BufferStore, lambda each: touched.append(each.buffer))])
    unknown = SBlock(iterations, [], [], name, accesses, start)
    reads, writes, _ = get_sblock_access_region(unknown, {each: each for each in touched})
    return SBlock(iterations, reads, writes, name, body, start, annotations=annotations)


def selected(index: Any, values: Sequence[Any]) -> Any:
    """Return an expression that selects the value at ``index``. If the loop over the indices is unrolled, nothing is
    left of the selection."""
    chosen = values[-1]
    for at in reversed(range(len(values) - 1)):
        chosen = tirx.Select(index == at, values[at], chosen)
    return chosen


def buffer_of(name: str, shape: Sequence[int], index: str, dtype: str = FLOAT) -> Any:
    """Return a new buffer."""
    return tirx.decl_buffer([tirx.const(extent, index) for extent in shape], dtype, name)


def replaced(expression: Any, values: Mapping[Any, Any]) -> Any:
    """Return an expression whose variables are replaced by values."""

    def value(variable: Any) -> Any:
        return next((new for old, new in values.items() if old.same_as(variable)), variable)

    return structural_map(expression, (Var, value))


def axes_of(block: SBlock) -> list[Var]:
    """Return the iteration variables of a block."""
    return [iteration.var for iteration in block.iter_vars]


def are_equal(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Return true if both lists have the same length and equal expressions at each position."""
    return len(found) == len(expected) and all(
        structural_equal(one, other) for one, other in zip(found, expected, strict=True)
    )


def is_element_wise(block: SBlock, source: Any) -> bool:
    """Return true if a block computes each element of its result from the element at the same place in ``source``."""
    store = block.body
    if not isinstance(store, BufferStore) or any(int(each.iter_type) != DATA_PARALLEL for each in block.iter_vars):
        return False
    if [int(each.dom.extent) for each in block.iter_vars] != [int(extent) for extent in source.shape]:
        return False
    loads: list[Any] = []
    structural_walk(store.value, (TensorLoad, loads.append))
    places = [load.indices for load in loads if load.source.same_as(source)]
    return all(are_equal([*place], axes_of(block)) for place in [*places, store.indices])


def variables_of(count: int, index: str) -> list[Var]:
    """Return new iteration variables of a block."""
    return [Var(f"v{at}", index) for at in range(count)]
