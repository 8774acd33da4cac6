"""Parallel loops of kernels for one core become serial loops.

TVM makes a function of its own of a parallel loop, which it calls through its pool of threads. On one core that call is
wasted, and in that function LLVM knows less of what the loop reads and writes.
"""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import For, ForKind, PrimFunc
from tvm_ffi import structural_map


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def serialize_parallel_loops(function: PrimFunc, _module: object, _context: object) -> PrimFunc:
    """Pass over functions that know their target."""
    target = function.attrs.get("target") if function.attrs else None
    if target is None or target.kind.name != "llvm" or int(target.attrs.get("num-cores", 0)) != 1:
        return function
    return function.with_body(structural_map(function.body, (For, _serial)))


def _serial(loop: For) -> For:
    if int(loop.kind) != int(ForKind.PARALLEL):
        return loop
    annotations = dict(loop.annotations)
    return For(loop.loop_var, loop.min, loop.extent, ForKind.SERIAL, loop.body, None, annotations, loop.step)
