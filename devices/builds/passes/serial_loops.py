"""Parallel loops with nothing to run in parallel become serial loops: those of one iteration, and all for one core.

TVM makes a function of its own of a parallel loop, which it calls through its pool of threads. Where only one thread
has work, that call is wasted, and in that function LLVM knows less of what the loop reads and writes.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import For, ForKind, IntImm, PrimFunc
from tvm_ffi import structural_map


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def serialize_parallel_loops(function: PrimFunc, _module: object, _context: object) -> PrimFunc:
    """Pass over functions that know their target."""
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
