"""Nests of loops that are small enough to be unrolled, in vectorised functions of CPUs with flat buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tvm.tirx import Bind, BufferStore, For, ForKind, IntImm, SeqStmt, Stmt, Var
from tvm_ffi import structural_map, structural_walk

MOST_STATEMENTS = 320
"""Statements of an unrolled loop at most: about what the cache of decoded instructions holds."""


def is_plain(loop: For) -> bool:
    """Return true for a serial loop from 0 to a constant."""
    bounds = isinstance(loop.min, IntImm) and int(loop.min) == 0 and isinstance(loop.extent, IntImm)
    return bounds and int(loop.kind) == int(ForKind.SERIAL)


def chains_of(statement: Stmt, copies: int) -> Iterator[tuple[For, ...]]:
    """Yield the plain loops around each other in a statement, down to an innermost one that is small enough for so many
    ``copies``: the transforms of Winograd's algorithm have thousands of statements, and need no look at each."""
    if isinstance(statement, SeqStmt):
        for each in statement:
            yield from chains_of(each, copies)
    elif isinstance(statement, For) and is_plain(statement):
        inner = list(chains_of(statement.body, copies))
        yield from ((statement, *each) for each in inner)
        is_small = len(statements_of(statement.body)) * copies <= MOST_STATEMENTS
        if not inner and is_small and _is_straight(statement.body):
            yield (statement,)


def _is_straight(body: Stmt) -> bool:
    """Return true for definitions and stores alone."""
    return all(isinstance(each, Bind | BufferStore) for each in statements_of(body))


def statements_of(body: Stmt) -> tuple[Stmt, ...]:
    return tuple(body) if isinstance(body, SeqStmt) else (body,)


def defined_in(body: Stmt) -> dict[Any, Any]:
    """Return the values of the variables that are defined in a statement."""
    values: dict[Any, Any] = {}

    def note(bind: Bind) -> None:
        values[bind.var] = bind.value

    structural_walk(body, [(Bind, note)])
    return values


def resolved(value: Any, values: dict[Any, Any]) -> Any:
    """Return an expression without the variables that are defined in the loop."""
    while reads(value, values):
        value = structural_map(value, (Var, lambda each: values.get(each, each)))
    return value


def reads(value: Any, variables: Collection[Any]) -> bool:
    """Return true if an expression reads one of these variables."""
    found: list[Var] = []
    structural_walk(value, [(Var, found.append)])
    return any(each in variables for each in found)


def copied(body: Sequence[Stmt], values: Mapping[Any, Any]) -> Iterator[Stmt]:
    """Yield statements with other values for variables, and with definitions of their own."""
    known = dict(values)
    for statement in body:
        if isinstance(statement, Bind):
            defined = _with_values(statement.value, known)
            known[statement.var] = Var(statement.var.name, str(statement.var.ty.dtype))
            yield Bind(known[statement.var], defined)
        else:
            yield _with_values(statement, known)


def _with_values(node: Any, known: dict[Any, Any]) -> Any:
    return structural_map(node, (Var, lambda each: known.get(each, each)))


def copied_nest(statement: Stmt, known: Mapping[Any, Any]) -> Stmt:
    """Return loops around statements with other values for variables, and with loop variables and definitions of their
    own."""
    if isinstance(statement, For):
        index = Var(statement.loop_var.name, str(statement.loop_var.ty.dtype))
        body = copied_nest(statement.body, {**known, statement.loop_var: index})
        return For(index, statement.min, statement.extent, statement.kind, body, None, dict(statement.annotations))
    found = list(copied(statements_of(statement), known))
    return SeqStmt(found) if len(found) > 1 else found[0]
