"""Prefetches of the weights that a CPU kernel reads next.

A product or convolution reads a panel of packed weights once for each block of rows, and then goes on to the next
panel. In a network the weights come from the last-level cache or from memory, since all other layers ran in between. So
the first block of rows waits for each panel. This pass makes every block of rows prefetch a part of the next panel, one
cache line every few steps, so that the panel is in the second-level cache when it is needed. The steps between two
prefetches are unrolled. On an Emerald Rapids, products of 128 rows with cold weights improved from 276 to 336 GFLOP/s;
the peak of its two cores is 349 (docs/lab/kernels.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.sym import detect_linear_equation
from tvm.tirx import Bind, BufferLoad, BufferStore, Evaluate, For, ForKind, IntImm, PrimFunc, Ramp, SeqStmt, Stmt, Var
from tvm_ffi import structural_map, structural_walk

from devices.builds.passes.stack_buffers import FOR_CPU
from devices.builds.passes.vector_lanes import dtype_of

_LINE_BYTES = 64
_STEPS = (8, 4)
"""Steps of the innermost loop between two prefetches, the best number first. With more steps the kernel gets too large;
with fewer, prefetching costs more than it saves."""
_MOST_STATEMENTS = 320
"""Most statements of an unrolled loop: about as many as the cache of decoded instructions holds."""
_READ, _ALL_LEVELS, _DATA = 0, 3, 1
"""Arguments of LLVM's prefetch intrinsic."""


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def prefetch_next_panels(function: PrimFunc, _module: object, _context: object) -> PrimFunc:
    """Pass over vectorised functions of CPUs with flat buffers."""
    if not function.attrs or FOR_CPU not in function.attrs:
        return function
    return function.with_body(structural_map(function.body, (For, _with_prefetches)))


@dataclass(frozen=True)
class _Panel:
    """Weights that a loop nest reads in the order of memory, once for each iteration of the enclosing loop over
    rows."""

    buffer: Any
    start: Any
    """Index of its first element."""
    step: int
    """Elements that one step of the innermost loop reads."""
    element_bytes: int


def _with_prefetches(rows: For) -> For:
    """Return a loop over blocks of rows with prefetches in its innermost loop; any other loop stays unchanged."""
    if not _is_plain(rows) or int(rows.extent) < 2:
        return rows
    chains = list(_chains(rows.body))
    values = _defined_in(rows.body) if chains else {}
    for chain in chains:
        panel = _panel_of(rows, chain, values)
        if panel is None:
            continue
        unrolled = _unrolled(rows, chain, panel)
        if unrolled is not None:
            body = _replaced(rows.body, chain[-1], unrolled)
            return For(rows.loop_var, rows.min, rows.extent, rows.kind, body, None, dict(rows.annotations))
    return rows


def _replaced(body: Stmt, loop: For, by: For) -> Stmt:
    """Return a statement in which ``loop`` is replaced by another loop."""
    return structural_map(body, (For, lambda each: by if each.same_as(loop) else each))


def _defined_in(body: Stmt) -> dict[Any, Any]:
    """Return the values of the variables that are defined in a statement."""
    values: dict[Any, Any] = {}

    def note(bind: Bind) -> None:
        values[bind.var] = bind.value

    structural_walk(body, [(Bind, note)])
    return values


def _is_plain(loop: For) -> bool:
    """Return true for a serial loop from 0 to a constant."""
    bounds = isinstance(loop.min, IntImm) and int(loop.min) == 0 and isinstance(loop.extent, IntImm)
    return bounds and int(loop.kind) == int(ForKind.SERIAL)


def _chains(statement: Stmt) -> Iterator[tuple[For, ...]]:
    """Yield each chain of nested plain loops in a statement, down to an innermost loop that is small enough to be
    unrolled. The limit also saves time: the transforms of Winograd's algorithm have thousands of statements."""
    if isinstance(statement, SeqStmt):
        for each in statement:
            yield from _chains(each)
    elif isinstance(statement, For) and _is_plain(statement):
        inner = list(_chains(statement.body))
        yield from ((statement, *each) for each in inner)
        is_small = len(_statements(statement.body)) * min(_STEPS) <= _MOST_STATEMENTS
        if not inner and is_small and _is_straight(statement.body):
            yield (statement,)


def _is_straight(body: Stmt) -> bool:
    """Return true if a body consists of definitions and stores only."""
    return all(isinstance(each, Bind | BufferStore) for each in _statements(body))


def _statements(body: Stmt) -> tuple[Stmt, ...]:
    return tuple(body) if isinstance(body, SeqStmt) else (body,)


def _panel_of(rows: For, chain: Sequence[For], values: dict[Any, Any]) -> _Panel | None:
    """Return the panel that the loops of a chain read in the order of memory, and again in each iteration of ``rows``;
    None if there is none. ``values``: values of the variables that are defined in the loop ``rows``."""
    loads: list[TensorLoad] = []
    structural_walk(chain[-1].body, [(TensorLoad, loads.append)])
    for load in loads:
        index = load.indices[0] if len(load.indices) == 1 else None
        if not isinstance(index, Ramp) or not isinstance(index.stride, IntImm) or int(index.stride) != 1:
            continue
        base = _resolved(index.base, values)
        terms = detect_linear_equation(base, [rows.loop_var, *(loop.loop_var for loop in chain)])
        if len(terms) == 0 or not all(isinstance(term, IntImm) for term in terms[:-1]):
            continue
        of_rows, *steps = (int(term) for term in terms[:-1])
        step = steps[-1]
        element_bytes = tvm.DataType(dtype_of(load)).bits // 8
        is_in_order = all(
            outer == inner * int(loop.extent) for outer, inner, loop in zip(steps, steps[1:], chain[1:], strict=False)
        )
        if of_rows == 0 and step >= int(index.lanes) and is_in_order:
            return _Panel(load.source, terms[-1], step, element_bytes)
    return None


def _resolved(value: Any, values: dict[Any, Any]) -> Any:
    """Return an expression in which variables that are defined in the loop are replaced by their values."""
    while _reads(value, values):
        value = structural_map(value, (Var, lambda each: values.get(each, each)))
    return value


def _reads(value: Any, variables: Collection[Any]) -> bool:
    """Return true if an expression reads one of these variables."""
    found: list[Var] = []
    structural_walk(value, [(Var, found.append)])
    return any(each in variables for each in found)


def _unrolled(rows: For, chain: Sequence[For], panel: _Panel) -> For | None:
    """Return the innermost loop with a prefetch every few steps; None if that is not worth it."""
    innermost = chain[-1]
    extent, body = int(innermost.extent), _statements(innermost.body)
    # All iterations over rows together must prefetch one panel.
    most = int(rows.extent) * _LINE_BYTES / (panel.step * panel.element_bytes)
    fitting = (n for n in _STEPS if n <= most and extent % n == 0 and n * len(body) <= _MOST_STATEMENTS)
    steps = next(fitting, None)
    if steps is None:
        return None
    index = innermost.loop_var
    dtype = str(index.ty.dtype)
    part = Var(f"{index.name}_part", dtype)
    copies = [_copied(body, index, part * IntImm(dtype, steps) + IntImm(dtype, at)) for at in range(steps)]
    prefetch = _prefetch(rows, chain, panel, part, steps)
    whole = SeqStmt([prefetch, *(each for copy in copies for each in copy)])
    return For(part, innermost.min, IntImm(dtype, extent // steps), ForKind.SERIAL, whole, None, {})


def _copied(body: Sequence[Stmt], index: Var, value: Any) -> Iterator[Stmt]:
    """Yield the statements of one step, with new variables in its definitions."""
    known: dict[Any, Any] = {index: value}
    for statement in body:
        if isinstance(statement, Bind):
            defined = _with_values(statement.value, known)
            known[statement.var] = Var(statement.var.name, str(statement.var.ty.dtype))
            yield Bind(known[statement.var], defined)
        else:
            yield _with_values(statement, known)


def _with_values(node: Any, known: dict[Any, Any]) -> Any:
    return structural_map(node, (Var, lambda each: known.get(each, each)))


def _prefetch(rows: For, chain: Sequence[For], panel: _Panel, part: Var, steps: int) -> Stmt:
    """Return the prefetch of one cache line of the next panel. Each part of each iteration over rows prefetches another
    line. After all lines, the last one is prefetched again."""
    dtype = dtype_of(panel.start)

    def number(value: int) -> IntImm:
        return IntImm(dtype, value)

    def as_index(value: Any) -> Any:
        return value if dtype_of(value) == dtype else tirx.Cast(dtype, value)

    line = as_index(rows.loop_var)
    panel_steps = 1
    for loop in chain[:-1]:
        line = line * number(int(loop.extent)) + as_index(loop.loop_var)
    for loop in chain:
        panel_steps *= int(loop.extent)
    line = line * number(int(chain[-1].extent) // steps) + as_index(part)
    lines = -(-panel_steps * panel.step * panel.element_bytes // _LINE_BYTES)
    if int(rows.extent) * panel_steps // steps > lines:
        line = tirx.min(line, number(lines - 1))
    at = panel.start + number(panel_steps * panel.step) + line * number(_LINE_BYTES // panel.element_bytes)
    address = tirx.address_of(BufferLoad(panel.buffer, [at]))
    arguments = (IntImm("int32", value) for value in (_READ, _ALL_LEVELS, _DATA))
    return Evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, *arguments))
