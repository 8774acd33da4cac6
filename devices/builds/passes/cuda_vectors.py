"""Narrowing of vector loops of CUDA kernels to widths for which TVM's code generator is correct.

MetaSchedule copies up to 16 elements at once to shared memory. If they are adjacent, one instruction loads them. If
they are not, as in a transposed matrix, each element is loaded separately, and TVM's code generator combines them. This
is correct for up to four lanes; for more it makes calls with too many arguments, or an integer of too few bits. If the
distance between elements changes, as at the end of a row, TVM may miss necessary barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr, PrimType, TensorLoad
from tvm.sym import Analyzer
from tvm.tirx import BufferStore, For, IntImm, PrimFunc, Var
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import WalkResult, structural_map, structural_walk

from devices.builds.passes.vector_lanes import dtype_of, is_vector_loop, vector_in_parts

_APART = 4
"""Most lanes if elements are not adjacent."""
_ADJACENT = {"int8": 16, "uint8": 16, "bool": 4, "int64": 4, "uint64": 4, "float64": 4}
_ADJACENT_OF_OTHERS = 8
"""Most lanes of types that are not in :data:`_ADJACENT`, if all elements are adjacent."""
_BYTES = ("int8", "uint8")
_HALVES = ("float16", "bfloat16")


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def narrow_cuda_vectors(function: PrimFunc, _module: object, _context: object) -> PrimFunc:
    """Pass over functions with a target attribute and flat buffers, before vector loops become vectors."""
    target = function.attrs.get("target") if function.attrs else None
    if target is None or target.kind.name != "cuda":
        return function
    return function.with_body(structural_map(function.body, (For, _narrowed)))


def _narrowed(loop: For) -> For:
    """Return a vector loop with correct vectors; other loops stay unchanged."""
    if not is_vector_loop(loop):
        return loop
    lanes = _lanes(loop)
    return loop if lanes == int(loop.extent) else vector_in_parts(loop, lanes)


def _lanes(loop: For) -> int:
    """Return the number of lanes of the widest correct vectors, which divides the extent of the loop."""
    stores: list[BufferStore] = []
    structural_walk(loop.body, [(BufferStore, stores.append)])
    extent = int(loop.extent)
    most = min([extent, *(_most(store, loop.loop_var, extent) for store in stores)])
    right = (lanes for lanes in range(most, 0, -1) if lanes == extent == 3 or lanes & (lanes - 1) == 0)
    return next(lanes for lanes in right if extent % lanes == 0)


def _most(store: BufferStore, index: Var, extent: int) -> int:
    """Return the most lanes of correct vectors in a store. ``index``: variable of the vector loop."""
    limits = [_limit(store.indices, index, extent)]

    def note(value: Any) -> WalkResult:
        if isinstance(value.ty, PrimType):
            limits.append(_limit_of(value, index, extent))
        if not isinstance(value, TensorLoad):
            return WalkResult.ADVANCE
        limits.append(_limit(value.indices, index, extent))
        return WalkResult.SKIP

    structural_walk(store.value, [(Expr, note)], order="pre")
    return min(limits)


def _limit_of(value: Any, index: Var, extent: int) -> int:
    """Return the most lanes that the type of a subexpression allows."""
    dtype = dtype_of(value)
    is_same_byte = dtype in _BYTES and not isinstance(value, IntImm) and not _uses(value, index)
    if is_same_byte or (dtype in _HALVES and extent % 2):  # TVM cannot broadcast a byte
        return 1
    return _ADJACENT.get(dtype, _ADJACENT_OF_OTHERS)


def _uses(value: Any, index: Var) -> bool:
    return any(each.same_as(index) for each in undefined_vars(value))


def _limit(at: Sequence[Any], index: Var, extent: int) -> int:
    """Return the most lanes of a vector that is accessed at the indices ``at``."""
    steps = {_step(each, index, extent) for each in at}
    if None in steps:
        return 1
    return max(_ADJACENT.values()) if steps == {1} else _APART


def _step(at: Any, index: Var, extent: int) -> int | None:
    """Return the distance of neighbouring elements in memory; None if it is not constant."""
    first, *others = (
        structural_map(at, (Var, lambda each, lane=lane: IntImm(index.ty.dtype, lane) if each.same_as(index) else each))
        for lane in range(extent)
    )
    distances = [Analyzer().simplify(each - first) for each in others]
    if not all(isinstance(each, IntImm) for each in distances):
        return None
    step = int(distances[0]) if distances else 1
    return step if [int(each) for each in distances] == [step * lane for lane in range(1, extent)] else None
