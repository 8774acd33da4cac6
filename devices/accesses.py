"""What a block of TensorIR computes and touches, as the plain types of :mod:`fleet_tune.sketch`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm.ir import Call, TensorLoad
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import Add, BufferStore, Div, Max, Min, Mul, PrimFunc, Sub, Var
from tvm_ffi import structural_visit, structural_walk

from fleet_tune.sketch import Access, Axis, Scope

# Values of tvm.tirx.IterVar.iter_type.
DATA_PARALLEL = 0
REDUCTION = 2

_ARITHMETIC = (Add, Sub, Mul, Div, Max, Min)
# A transcendental function costs about as much as this many additions.
_CALL_OPERATIONS = 8
_CALLS = ("tirx.exp", "tirx.log", "tirx.sqrt", "tirx.rsqrt", "tirx.tanh", "tirx.erf", "tirx.sigmoid", "tirx.pow")


@dataclass(frozen=True)
class BlockFacts:
    """A leaf block: its axes, accesses and float operations per point, whatever its loops are."""

    name: str
    axes: tuple[Axis, ...]
    accesses: tuple[Access, ...]
    flop_per_point: float

    @property
    def points(self) -> int:
        return prod(axis.extent for axis in self.axes)


def leaf_blocks(func: PrimFunc) -> dict[str, SBlock]:
    """The blocks of ``func`` without blocks inside, by name, in program order."""
    return {path[-1].name_hint: path[-1] for path in _paths(func)}


def block_facts(func: PrimFunc, name: str) -> BlockFacts | None:
    """The facts of the leaf block ``name``; None where an access is not affine in the block's axes."""
    path = next(path for path in _paths(func) if path[-1].name_hint == name)
    block = path[-1]
    iterations = [iteration for each in path[1:] for iteration in each.iter_vars]
    axes = tuple(
        Axis(str(iteration.var.name), int(iteration.dom.extent), int(iteration.iter_type) == REDUCTION)
        for iteration in iterations
    )
    variables = [iteration.var for iteration in iterations]
    weights = [func.params[int(i)] for i in (func.attrs or {}).get("layout_free_buffers", [])]
    touched: list[tuple[Any, list[Any], bool]] = []
    operations = 0.0

    def load(node: TensorLoad) -> None:
        touched.append((node.source, list(node.indices), False))

    def arithmetic(node: Any) -> None:
        nonlocal operations
        operations += _is_float(node)

    def call(node: Call) -> None:
        nonlocal operations
        operations += _CALL_OPERATIONS * (getattr(node.op, "name", "") in _CALLS)

    def store(node: BufferStore) -> None:
        touched.append((node.buffer, list(node.indices), True))

    structural_walk(
        block.body,
        [(TensorLoad, load), (BufferStore, store), (Call, call), *((kind, arithmetic) for kind in _ARITHMETIC)],
    )
    accesses: list[Access] = []
    for buffer, indices, write in touched:
        index = _affine(indices, variables)
        if index is None:
            return None
        access = Access(
            buffer=str(buffer.name),
            shape=tuple(int(n) for n in buffer.shape),
            element_bytes=max(1, _bits(buffer) // 8),
            index=index,
            write=write,
            scope=_scope(buffer),
            packed=not write and any(buffer.same_as(weight) for weight in weights),
        )
        if access not in accesses:
            accesses.append(access)
    return BlockFacts(name, axes, tuple(accesses), operations)


def _paths(func: PrimFunc) -> Iterator[list[SBlock]]:
    """The blocks from the root to each leaf block."""
    yield from _descend([func.body.block])


def _descend(path: list[SBlock]) -> Iterator[list[SBlock]]:
    inner: list[SBlock] = []

    def visit(realize: SBlockRealize, _visitor: Any) -> None:
        inner.append(realize.block)  # without visiting further: the blocks inside are found by the next step

    structural_visit(path[-1].body, (SBlockRealize, visit))
    if not inner:
        yield path
    for block in inner:
        yield from _descend([*path, block])


def _affine(indices: list[Any], variables: list[Var]) -> tuple[tuple[int, ...], ...] | None:
    """Coefficients of each index in the axes, None where one is not affine."""
    rows = []
    for index in indices:
        terms = tvm.sym.detect_linear_equation(index, variables)
        if len(terms) != len(variables) + 1:
            return None
        try:
            rows.append(tuple(int(term) for term in terms[:-1]))
        except TypeError:
            return None
    return tuple(rows)


def _is_float(node: Any) -> bool:
    return str(node.ty).startswith(("float", "bfloat"))


def _bits(buffer: Any) -> int:
    return int(tvm.DataType(str(buffer.dtype)).bits)


def _scope(buffer: Any) -> Scope:
    scope = str(buffer.scope())
    return "shared" if scope.startswith("shared") else "local" if scope == "local" else "global"
