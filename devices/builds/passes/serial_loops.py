"""Conversion of parallel loops to serial loops if nothing can run in parallel: loops of one iteration, and all loops on
one core.

TVM puts the body of a parallel loop into a separate function, and calls this function through its thread pool. If only
one thread has work, the call is wasted, and LLVM knows less about the memory that the separate function reads and
writes.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import For, ForKind, IntImm, PrimFunc
from tvm_ffi import structural_map


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def serialize_parallel_loops(function: PrimFunc, _module: object, _context: object) -> PrimFunc:
    """Pass over functions with a target attribute."""
    target = function.attrs.get("target") if function.attrs else None
    if target is None or target.kind.name != "llvm":
        return function
    has_one_core = int(target.attrs.get("num-cores", 0)) == 1

    def serial(loop: For) -> For:
        is_single = isinstance(loop.extent, IntImm) and int(loop.extent) == 1
        if int(loop.kind) != int(ForKind.PARALLEL) or not (has_one_core or is_single):
            return loop
        annotations = dict(loop.annotations)
        return For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, loop.body, None, annotations, loop.step)

    return function.with_body(structural_map(function.body, (For, serial)))
