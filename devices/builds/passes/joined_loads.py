"""Joining of loads of neighbouring narrow numbers that are packed into one 32-bit number.

:mod:`devices.networks.graph.low_precision` packs four bytes, two bytes or two bfloat16 numbers. Each of them is a
separate load (in a vector, a gather), and LLVM takes up to a minute for a kernel with many such loads. If the numbers
are adjacent, memory already holds the packed number: on a little-endian CPU they are one load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import BitwiseXor, Broadcast, BufferLoad, Cast, IntImm, LShift, PrimFunc, Ramp, Shuffle
from tvm_ffi import structural_map

from devices.builds.passes.vector_lanes import dtype_of, lanes_of

_BITS = 32
_BYTE_SHIFTS = ((0, 8, 16, 24), (0, 16))
"""Shifts by which bytes are packed into a 32-bit number."""


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def join_byte_loads(function: PrimFunc, _module: Any, _context: Any) -> PrimFunc:
    """Pass over vectorised functions of CPUs with flat buffers: loads the bytes of a 32-bit number at once."""
    return function.with_body(structural_map(function.body, [(BitwiseXor, _with_joined_bytes)]))


def joined(loads: Sequence[TensorLoad]) -> Any | None:
    """Return an int32 (or vector) into which the loaded numbers are packed without sign extension, each in an equal
    part, the first in the lowest bits; None if they are not adjacent in memory."""
    buffer, lanes, terms = loads[0].source, lanes_of(loads[0]), len(loads)
    first, *rest = (load.indices[0] for load in loads)
    if any(len(load.indices) != 1 or not load.source.same_as(buffer) for load in loads):
        return None
    if any(not _follows(index, first, at) for at, index in enumerate(rest, 1)):
        return None
    if not isinstance(first, Ramp):
        return None if lanes > 1 else _numbers(buffer, first, terms, 1)
    stride = first.stride
    if isinstance(stride, IntImm) and int(stride) == terms:
        return _numbers(buffer, first.base, terms, lanes)
    each = [_numbers(buffer, first.base + lane * stride, terms, 1) for lane in range(lanes)]
    return Shuffle(each, [IntImm("int32", lane) for lane in range(lanes)])


def _with_joined_bytes(whole: BitwiseXor) -> Any:
    loads: dict[int, TensorLoad] = {}
    others: list[Any] = []
    for term in _terms(whole):
        shift, load = _shifted_byte(term)
        if load is None or shift in loads:
            others.append(term)
        else:
            loads[shift] = load
    shifts = tuple(sorted(loads))
    value = joined([loads[shift] for shift in shifts]) if shifts in _BYTE_SHIFTS else None
    if value is None:
        return whole
    for other in others:
        value = value ^ other
    return value


def _terms(value: Any) -> Iterator[Any]:
    """Yield the operands of an exclusive or of several values."""
    if isinstance(value, BitwiseXor):
        yield from _terms(value.a)
        yield from _terms(value.b)
    else:
        yield value


def _shifted_byte(term: Any) -> tuple[int, TensorLoad | None]:
    """Return the shift and the load of a term that is a shifted byte. The load is None for any other term."""
    shift = 0
    if isinstance(term, LShift):
        by = term.b.value if isinstance(term.b, Broadcast) else term.b
        if not isinstance(by, IntImm):
            return 0, None
        shift, term = int(by), term.a
    load = term.value if isinstance(term, Cast) and dtype_of(term).startswith("int32") else None
    return shift, load if isinstance(load, TensorLoad) and str(load.source.dtype) == "uint8" else None


def _follows(index: Any, first: Any, distance: int) -> bool:
    """Return true if an index is always the first one plus ``distance``, in all lanes."""
    if isinstance(first, Ramp):
        if not isinstance(index, Ramp) or not Analyzer().can_prove_equal(index.stride, first.stride):
            return False
        index, first = index.base, first.base
    return not isinstance(index, Ramp) and Analyzer().can_prove_equal(index - first, distance)


def _numbers(buffer: Any, base: Any, terms: int, lanes: int) -> Any:
    """Return ``lanes`` adjacent 32-bit numbers, each of which packs ``terms`` elements of a buffer, from index ``base``
    on."""
    count = terms * lanes
    loaded = BufferLoad(buffer, [Ramp(base, IntImm(dtype_of(base), 1), count)])
    held = f"uint{_BITS // terms}x{count}"
    if dtype_of(loaded) != held:
        loaded = Cast(held, loaded)
    return tirx.reinterpret("int32" if lanes == 1 else f"int32x{lanes}", loaded)
