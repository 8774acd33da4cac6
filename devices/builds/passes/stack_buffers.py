"""Placement of small buffers of CPU kernels on the stack.

TVM allocates every buffer in the scope "local", and every other buffer of 1 KiB and more, from its workspace pool. This
takes two runtime calls, some 15 ns, in each iteration of the enclosing loop, and LLVM cannot keep such memory in
registers. A tile of sums, or a row of a softmax, belongs on the stack.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.tirx import AllocBuffer, IntImm, PrimFunc, const
from tvm_ffi import structural_map

#: Most bytes of one buffer, and of all stack buffers of a kernel: threads of a small system have stacks of some hundred
#: KiB.
MOST_BYTES = 16 << 10
MOST_BYTES_TOGETHER = 64 << 10

# Annotation that makes TVM leave an allocation to the code generator.
_KEEP_ALLOCATION = "disable_lower_builtin"
# Attribute of functions that are for a CPU from the beginning. The host part of a GPU's kernel gets the host's target
# only later, and its allocations are memory of the GPU.
FOR_CPU = "fleet_tune.for_cpu"


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def mark_cpu_functions(function: PrimFunc, _module: Any, _context: Any) -> PrimFunc:
    """First pass: mark the functions that are for a CPU."""
    target = function.attrs.get("target") if function.attrs else None
    return function.with_attr(FOR_CPU, True) if target is not None and target.kind.name == "llvm" else function


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def place_on_stack(function: PrimFunc, _module: Any, _context: Any) -> PrimFunc:
    """Late pass: exempts small buffers from TVM's lowering to calls of the workspace pool."""
    if not (function.attrs and function.attrs.get(FOR_CPU)):
        return function
    left = MOST_BYTES_TOGETHER

    def placed(allocation: AllocBuffer) -> AllocBuffer:
        nonlocal left
        size = _bytes(allocation.buffer)
        if not 0 < size <= min(MOST_BYTES, left):
            return allocation
        left -= size
        annotations = {**dict(allocation.annotations), _KEEP_ALLOCATION: const(True, "bool")}
        return AllocBuffer(allocation.buffer, annotations=annotations)

    return function.with_body(structural_map(function.body, (AllocBuffer, placed)))


def _bytes(buffer: Any) -> int:
    """Return the size of a buffer in bytes; 0 if the size is not known, or the buffer has a special memory scope."""
    if buffer.scope() not in ("global", "local") or not all(isinstance(n, IntImm) for n in buffer.shape):
        return 0
    kind = tvm.DataType(str(buffer.dtype))
    size: int = (kind.bits + 7) // 8 * kind.lanes
    for extent in buffer.shape:
        size *= int(extent)
    return size
