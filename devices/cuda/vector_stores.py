"""A workaround for TVM's code generator for CUDA, which reuses stale values of vectors.

The generator assigns the operands of a vector expression to variables (``float4 v_ = *(float4*)(shared + 4)``). It uses
such a variable again if the same expression occurs again in the same scope, even if the memory was written in between,
as in an unrolled loop over the parts of a tile. A store in a scope of its own reads the current values.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir import TensorLoad
from tvm.tirx import BufferStore, For, ForKind, IntImm, Var
from tvm_ffi import structural_map, structural_walk


@tvm.tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def separate_vector_stores(function: Any, _module: Any, _context: Any) -> Any:
    """Put each store whose value is computed from vectors into a scope of its own: a loop of one iteration, which costs
    nothing."""

    def separate(store: BufferStore) -> Any:
        return _in_scope(store) if _reads_vectors(store.value) else store

    return function.with_body(structural_map(function.body, (BufferStore, separate)))


def _reads_vectors(value: Any) -> bool:
    loads: list[TensorLoad] = []
    structural_walk(value, [(TensorLoad, loads.append)])
    return any(tvm.DataType(str(load.ty.dtype)).lanes > 1 for load in loads)


def _in_scope(store: BufferStore) -> For:
    return For(Var("scope", "int32"), IntImm("int32", 0), IntImm("int32", 1), ForKind.SERIAL, store)
