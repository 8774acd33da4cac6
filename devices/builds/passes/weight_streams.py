"""Weights that a CPU kernel reads once, from several places at a time.

A product of one row reads each weight once, in the order of memory: what it takes is the time of reading. A processor
prefetches a few lines ahead of each sequence of reads, a *stream*, and one of them is not enough for the bandwidth of
its last cache: two cores of an Emerald Rapids read 28 GB/s as one stream each, and 50 as four. So the loop over the
terms of the sums takes a term of each quarter in turn:

    for k in 512:  sum += x[k] w[k]    ->    for k in 128:  for s in 4:  sum += x[128 s + k] w[128 s + k]
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.sym import detect_linear_equation
from tvm.tirx import Add, BufferStore, For, ForKind, IntImm, PrimFunc, Ramp, SeqStmt
from tvm_ffi import structural_equal, structural_map, structural_walk

from devices.builds.passes.loop_chains import (
    chains_of,
    copied_nest,
    defined_in,
    reads,
    resolved,
    statements_of,
)
from devices.builds.passes.stack_buffers import FOR_CPU
from devices.builds.passes.vector_lanes import dtype_of

_STREAMS = 4
_LEAST_BYTES = 4096
"""Of a stream: prefetching begins anew on each page."""
_MOST_ROWS = 2
"""Sums that a vector of weights is read for. With more of them the arithmetic takes longer than the reading."""


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def read_weights_as_streams(function: PrimFunc, _module: object, _context: object) -> PrimFunc:
    """Pass over vectorised functions of CPUs with flat buffers."""
    if not function.attrs or FOR_CPU not in function.attrs:
        return function
    values = defined_in(function.body)
    return function.with_body(structural_map(function.body, (For, lambda loop: _as_streams(loop, values))))


def _as_streams(loop: For, values: dict[Any, Any]) -> For:
    """Return a loop over the terms of sums with a term of each part in turn; any other loop as it is."""
    chain = next(iter(chains_of(loop, _STREAMS)), None)
    if chain is None or int(loop.extent) % _STREAMS or not _streams(chain, values):
        return loop
    count = int(loop.extent) // _STREAMS
    dtype = str(loop.loop_var.ty.dtype)
    term = tirx.Var(loop.loop_var.name, dtype)
    parts = (IntImm(dtype, at * count) + term for at in range(_STREAMS))
    body = SeqStmt([copied_nest(loop.body, {loop.loop_var: part}) for part in parts])
    return For(term, loop.min, IntImm(dtype, count), ForKind.SERIAL, body, None, dict(loop.annotations))


def _streams(chain: Sequence[For], values: dict[Any, Any]) -> bool:
    """Return true if the loops of a chain only add to sums, and read vectors of weights in the order of memory, each
    for two sums at most."""
    if not all(outer.body.same_as(inner) for outer, inner in pairwise(chain)):
        return False
    stores = [each for each in statements_of(chain[-1].body) if isinstance(each, BufferStore)]
    written = {each.buffer for each in stores}
    if not stores or not all(_adds(each, chain, values, written) for each in stores):
        return False
    loads: list[TensorLoad] = []
    structural_walk(chain[-1].body, [(TensorLoad, loads.append)])
    read = [each for each in loads if _bytes_in_order(each, chain, values) >= _LEAST_BYTES * _STREAMS]
    vectors: list[Any] = []
    for each in read:
        if not any(structural_equal(each, other) for other in vectors):
            vectors.append(each)
    return bool(vectors) and len(stores) <= _MOST_ROWS * len(vectors)


def _adds(store: BufferStore, chain: Sequence[For], values: dict[Any, Any], written: Collection[Any]) -> bool:
    """Return true if a store adds to what is at a place that the loops of a chain do not change."""
    variables = {each.loop_var for each in chain}
    if not isinstance(store.value, Add) or any(reads(resolved(each, values), variables) for each in store.indices):
        return False
    before = [each for each in (store.value.a, store.value.b) if _is_at(each, store)]
    read: list[Any] = []
    structural_walk(store.value, [(TensorLoad, lambda load: read.append(load.source))])
    return len(before) == 1 and sum(each in written for each in read) == 1


def _is_at(value: Any, store: BufferStore) -> bool:
    if not isinstance(value, TensorLoad) or not value.source.same_as(store.buffer):
        return False
    return all(structural_equal(*pair) for pair in zip(value.indices, store.indices, strict=True))


def _bytes_in_order(load: TensorLoad, chain: Sequence[For], values: dict[Any, Any]) -> int:
    """Return the bytes that a load of a vector and its neighbours read one after the other; 0 where they do not."""
    index = load.indices[0] if len(load.indices) == 1 else None
    if not isinstance(index, Ramp) or not isinstance(index.stride, IntImm) or int(index.stride) != 1:
        return 0
    terms = detect_linear_equation(resolved(index.base, values), [loop.loop_var for loop in chain])
    if len(terms) == 0 or not all(isinstance(term, IntImm) for term in terms[:-1]):
        return 0
    steps = [int(term) for term in terms[:-1]]
    inner = zip(steps, steps[1:], chain[1:], strict=False)
    if steps[-1] < int(index.lanes) or any(outer != step * int(loop.extent) for outer, step, loop in inner):
        return 0
    return steps[0] * int(chain[0].extent) * int(tvm.DataType(dtype_of(load)).bits) // 8
