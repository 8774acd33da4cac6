"""Statements of an unscheduled program, and queries on their expressions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.ir import Call, TensorLoad
from tvm.tirx import Add, Bind, BufferStore, Cast, Div, FloorDiv, FloorMod, LShift, Max, Min, Mod, PrimFunc, RShift, Var
from tvm_ffi import structural_walk

from devices.sketches.description.accesses import REDUCTION, leaf_blocks
from devices.sketches.half_operators import is_dot2

MANTISSA_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Digits of each float type, the widest first."""


@dataclass(frozen=True)
class ProgramStatement:
    """An assignment ``target[...] = value``, or a sum ``target[...] += value``."""

    target: int
    dtype: str
    value: Any
    """The assigned value, or the term that is summed (or compared). None if it is not known."""
    indices: tuple[Any, ...]
    axes: frozenset[str]
    """Names of the reduction axes."""
    points: int
    """Number of reduced points for each element: product of the extents of the reduction axes; 1 without a
    reduction."""
    terms: int
    """Largest number of terms of the sum; 0 for no sum."""
    selects: bool
    """True for a maximum or minimum over values."""


def program_statements(func: PrimFunc) -> Iterator[ProgramStatement]:
    """Yield the statements of a function, in program order."""
    for block in leaf_blocks(func).values():
        bound: dict[str, Any] = {}
        stores: list[Any] = []

        def bind(node: Any, bound: dict[str, Any] = bound) -> None:
            bound[str(node.var.name)] = node.value

        structural_walk(block.body, [(Bind, bind), (BufferStore, stores.append)])
        over = [axis for axis in block.iter_vars if int(axis.iter_type) == REDUCTION]
        points = math.prod(int(axis.dom.extent) for axis in over)
        names = frozenset(str(axis.var.name) for axis in over)
        for store in stores:
            value = bound.get(str(store.value.name), store.value) if isinstance(store.value, Var) else store.value
            term = _term(store, value)
            is_sum = term is not None and isinstance(value, Add)
            # A running sum has no reduction axis.
            length = points if over else math.prod(int(extent) for extent in store.buffer.shape)
            length *= 2 if term is not None and is_dot2(term) else 1
            yield ProgramStatement(
                target=hash(store.buffer),
                dtype=str(store.buffer.dtype),
                value=value if term is None else term,
                indices=tuple(store.indices),
                axes=names,
                points=points,
                terms=length if is_sum else 0,
                selects=term is not None and not is_sum,
            )


def _term(store: Any, value: Any) -> Any:
    """Return the value that is added to (or compared with) the stored buffer; None if nothing is."""
    if isinstance(value, Add | Max | Min):
        for own, other in ((value.a, value.b), (value.b, value.a)):
            if isinstance(own, TensorLoad) and own.source.same_as(store.buffer):
                return other
    return None


def collected(value: Any, *kinds: type) -> list[Any]:
    """Return the nodes of an expression that are of these kinds."""
    found: list[Any] = []
    structural_walk(value, [(kind, found.append) for kind in kinds])
    return found


def loaded_buffers(value: Any) -> set[int]:
    """Return the hashes of the buffers that an expression loads from."""
    return {hash(load.source) for load in collected(value, TensorLoad)}


def accesses_of(value: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return the buffers that an expression loads from, with the indices."""
    return [(load.source, tuple(load.indices)) for load in collected(value, TensorLoad)]


def calls_of(value: Any, name: str) -> Iterator[Any]:
    """Yield the calls of an intrinsic in an expression."""
    return (call for call in collected(value, Call) if call_name(call) == name)


def call_name(call: Any) -> str:
    """Return the name of the intrinsic that is called, without TVM's prefixes (``tirx.``, ``prim.``)."""
    return str(getattr(call.op, "name", "")).rpartition(".")[2]


def variables_of(value: Any) -> list[Any]:
    """Return the variables in an expression."""
    return [value] if isinstance(value, Var) else collected(value, Var)


def shifts_of(value: Any) -> Iterator[Any]:
    """Yield the amounts of all shifts in an expression."""
    yield from (node.b for node in collected(value, LShift, RShift))
    yield from (call.args[1] for name in ("shift_left", "shift_right") for call in calls_of(value, name))


def divisors_of(value: Any) -> Iterator[Any]:
    """Yield the divisors in an expression."""
    return (node.b for node in collected(value, Div, FloorDiv, Mod, FloorMod))


def cast_types(value: Any) -> Iterator[str]:
    """Yield the types that an expression casts to."""
    return (dtype_of(cast) for cast in collected(value, Cast))


def makes_integers(value: Any) -> bool:
    """Return true if an expression casts a float to an integer."""
    casts = collected(value, Cast)
    return any(dtype_of(c).startswith(("int", "uint")) and dtype_of(c.value) in MANTISSA_BITS for c in casts)


def dtype_of(value: Any) -> str:
    """Return the type of an expression."""
    return str(tvm.DataType(str(value.ty)))
